"""Values of a speed view in its compacted topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, LongType, StructField, StructType

from include.ledger.intervals import evidence
from include.pipelines.spec import AdditiveView, Pipeline
from include.pipelines.spec.views import VERSION_HEADER
from spark_jobs.spark.kafka_source import read_topic
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.windows import Window

_NO_VERSION = -2
"""Below that of the first generation's base, which is -1."""

_MOST_DIGITS = 38
"""Of a decimal in Spark."""

CLOCKS_APART = timedelta(hours=1)
"""How far the clocks of PostgreSQL and of Spark drivers may differ."""


def written_since(pipeline: Pipeline, view: AdditiveView, windows: Sequence[Window]) -> datetime | None:
    """Return the time since which the speed view may have written values of the windows; None when it is unknown.

    Older values need not be read.
    """
    events = (min(start for start, _ in windows), max(end for _, end in windows))
    began = evidence.first_counted(pipeline.name, view.name, events)
    return began - CLOCKS_APART if began else None


def speed_values(spark: SparkSession, view: AdditiveView, last_batch: int, since: datetime | None = None) -> DataFrame:
    """Return the last value of each key that the speed view committed. Columns: key, the measures.

    Only values written at `since` or later count, and only of micro-batches that the ledger knows. A deletion, or text
    that is not a value of the view, counts as a last value with null measures, because readers get it too. Where topic
    partitions were added, a key may have values in two of them: the one with the larger version is the last.
    """
    committed = _committed(spark, view, since).where(F.col("version") <= last_batch)
    # Wrapped in a struct, because max_by skips nulls and would return the value before a deletion.
    lasts = committed.groupBy("key", "partition").agg(F.max_by(F.struct("value", "version"), "offset").alias("last"))
    last = lasts.groupBy("key").agg(F.max_by("last", "last.version")["value"].alias("value"))
    return last.select("key", *(F.col("value")[name].alias(name) for name in view.measures))


def key_places(spark: SparkSession, view: AdditiveView, last: int | None = None) -> DataFrame:
    """Return the keys that the speed view wrote, with each topic partition that holds one. Columns: key, partition.

    Only versions up to `last` count, if it is given.

    Where topic partitions were added, a key may lie in two of them, and a deletion reaches only the one it is in. Keys
    that only others wrote, without a version, are not among them; those of any version are, since a lost ledger may
    have had more generations.
    """
    written = _committed(spark, view).where(F.col("version") > _NO_VERSION)
    if last is not None:
        written = written.where(F.col("version") <= last)
    return written.select("key", "partition").distinct()


def _committed(spark: SparkSession, view: AdditiveView, since: datetime | None = None) -> DataFrame:
    """Return what speed views committed to the topic. Columns: key, partition, offset, value, version."""
    declared = struct_of(view.columns)
    # As the sums were made: in a declared type that is too small for one, `from_json` would give null instead of it.
    measures = [StructField(name, _widest(declared[name].dataType)) for name in view.measures]
    schema = StructType([*measures, StructField("version", LongType())])
    values = read_topic(spark, view.speed.topic, since).select(
        F.col("key").cast("string").alias("key"),
        "partition",
        "offset",
        _version_in(F.col("headers")).alias("deleted_by"),
        F.from_json(F.col("value").cast("string"), schema).alias("value"),
    )
    version = F.coalesce(F.col("value.version"), F.col("deleted_by"), F.lit(_NO_VERSION)).alias("version")
    return values.select("key", "partition", "offset", "value", version)


def _widest(kind: DataType) -> DataType:
    return DecimalType(_MOST_DIGITS, kind.scale) if isinstance(kind, DecimalType) else LongType()


def _version_in(headers: Column) -> Column:
    """Return the version that a message's headers name (those of deletions do); null when they name none."""
    named = F.try_element_at(F.filter(headers, lambda each: each["key"] == VERSION_HEADER), F.lit(1))
    return named["value"].cast("string").try_cast("BIGINT")


def with_window(view: AdditiveView, values: DataFrame) -> DataFrame:
    """Add the start and end of the window that a value's key names; null where it names none."""
    declared = struct_of(view.columns)
    window = F.from_json("key", StructType([declared[view.window]]))[view.window]
    return values.select("key", window["start"].alias("start"), window["end"].alias("end"), *view.measures)
