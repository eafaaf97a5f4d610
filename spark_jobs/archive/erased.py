"""Leaves erased records out of what is read from files or from Kafka."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger.erasures.coordinates import erased_within
from include.offsets import ERASED, Coordinates, OffsetRange
from spark_jobs.archive.files import broadcast_few
from spark_jobs.spark.frames import frame_of

_COORDINATES = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"


def without_erased(rows: DataFrame, pipeline: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return archive rows, or Kafka records, without those that were erased within the ranges."""
    return without(rows, erased_within(pipeline, ranges))


def without(rows: DataFrame, coordinates: Collection[Coordinates]) -> DataFrame:
    """Return archive rows, or Kafka records, without those at the coordinates."""
    if not coordinates:
        return rows
    erased = frame_of(rows.sparkSession, sorted(coordinates), _COORDINATES)
    prefix = "kafka_" if "kafka_offset" in rows.columns else ""
    at = [rows[f"{prefix}{name}"] == erased[f"kafka_{name}"] for name in ("topic", "partition", "offset")]
    return rows.join(broadcast_few(erased, len(coordinates)), at, "left_anti")


def erased_records(spark: SparkSession, pipeline: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the erased records of the ranges. Columns: fate and the coordinates."""
    erased = frame_of(spark, erased_within(pipeline, ranges), _COORDINATES)
    return erased.select(F.lit(ERASED).alias("fate"), "*")
