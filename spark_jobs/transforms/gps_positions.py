"""gps_positions: one position per message, and how positions are counted."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970: the timestamps that Spark, Parquet and Python all support."""

MOVING = 3.0
"""Speed in km/h from which a position counts as moving."""

IMPRECISE = 50.0
"""Accuracy in m from which a position is imprecise."""


def positions(message: Column) -> Column:
    """Return the position of a message, a struct; the message's time is in milliseconds since 1970.

    A time outside the years 1 to 9999 becomes the nearest one inside, which breaks a rule as well.
    """
    told = message["timestamp"]
    milliseconds = F.when(told < _FIRST, _FIRST).when(told > _LAST, _LAST).otherwise(told)
    names = ("deviceId", "latitude", "longitude", "altitude", "speed", "accuracy")
    return F.struct(F.timestamp_millis(milliseconds).alias("timestamp"), *(message[name] for name in names))


def counted_positions(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return all positions. Columns: those of `archive`, and `event_time`."""
    return archive


def hourly_counts(positions: DataFrame, window: Column) -> DataFrame:
    """Count positions per device and window, and those in motion.

    Columns: deviceId bigint, window struct<start, end> (UTC), positions bigint, moving bigint.
    """
    return (
        positions.groupBy("deviceId", window)
        .agg(F.count(F.lit(1)).alias("positions"), F.count_if(F.col("speed") >= MOVING).alias("moving"))
        .select("deviceId", "window", "positions", "moving")
    )


def imprecise_devices(archive: DataFrame) -> DataFrame:
    """Return devices with more imprecise positions than others; without an accuracy, a position counts as precise.

    Columns: deviceId bigint, positions bigint, imprecise bigint.
    """
    counted = archive.groupBy("deviceId").agg(
        F.count(F.lit(1)).alias("positions"), F.count_if(F.col("accuracy") >= IMPRECISE).alias("imprecise")
    )
    return counted.where(F.col("imprecise") * 2 > F.col("positions")).select("deviceId", "positions", "imprecise")
