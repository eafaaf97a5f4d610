"""Values of a speed view in its compacted topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from include.ledger.intervals import evidence
from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.spark.kafka_source import read_topic
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.windows import Window

_CLOCKS_APART = timedelta(hours=1)
"""How far the clocks of PostgreSQL and of Spark drivers may differ."""


def written_since(pipeline: Pipeline, view: AdditiveView, windows: Sequence[Window]) -> datetime | None:
    """Return since when the speed view may have written about the windows: older values need not be read.

    None when that is unknown.
    """
    events = (min(start for start, _ in windows), max(end for _, end in windows))
    began = evidence.first_counted(pipeline.name, view.name, events)
    return began - _CLOCKS_APART if began else None


def speed_values(spark: SparkSession, view: AdditiveView, last_batch: int, since: datetime | None = None) -> DataFrame:
    """Return the last value of each key that the speed view committed. Columns: key, the measures.

    Only values written at `since` or later count, and none of a micro-batch that the ledger does not know yet. A
    deletion, or text that is no value of the view, counts as a last value with null measures: readers get that too.
    """
    declared = struct_of(view.columns)
    schema = StructType([*(declared[name] for name in view.measures)]).add("version", LongType())
    values = read_topic(spark, view.speed.topic, since).select(
        F.col("key").cast("string").alias("key"),
        "offset",
        F.from_json(F.col("value").cast("string"), schema).alias("value"),
    )
    committed = values.where(F.coalesce(F.col("value.version"), F.lit(-1)) <= last_batch)
    # Wrapped, because max_by skips nulls and would return the value before a deletion.
    last = committed.groupBy("key").agg(F.max_by(F.struct("value"), "offset")["value"].alias("value"))
    return last.select("key", *(F.col("value")[name].alias(name) for name in view.measures))


def with_window(view: AdditiveView, values: DataFrame) -> DataFrame:
    """Add the start and end of the window that a value's key names; null where it names none."""
    window = F.from_json("key", f"{view.window} STRUCT<start: TIMESTAMP, end: TIMESTAMP>")[view.window]
    return values.select("key", window["start"].alias("start"), window["end"].alias("end"), *view.measures)
