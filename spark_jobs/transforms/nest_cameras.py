"""nest_cameras: the cameras in a message, and how sightings are counted."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def cameras(message: Column) -> Column:
    """Return the cameras of a message: array of structs with all camera fields, in the message's order."""
    return F.map_values(message["devices"]["cameras"])


def sightings(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return rows whose last event saw a person, with the zip code of the camera's location.

    An event is there with each message that states it. Cameras without a known location are left out.
    Columns: those of `archive`, `event_time`, and zip_code string.
    """
    locations = references["device_locations"].select("device_id", "zip_code")
    return archive.where(F.col("last_event.has_person")).join(F.broadcast(locations), "device_id")


def hourly_counts(sightings: DataFrame, window: Column) -> DataFrame:
    """Count sightings per zip code and window.

    Columns: zip_code string, window struct<start, end> (UTC), count bigint.
    """
    return (
        sightings.groupBy("zip_code", window)
        .agg(F.count(F.lit(1)).alias("count"))
        .select("zip_code", "window", "count")
    )


def offline_cameras(archive: DataFrame) -> DataFrame:
    """Return cameras whose last state in the interval is offline.

    That is the last one in the log that is not null, as for the stream's watch: events may come in another order. Of a
    camera in several topic partitions, whose offsets have no order, it is the latest by the records' timestamps.
    Columns: device_id, name_long, where_name, structure_id string, last_is_online_change timestamp.
    """
    columns = ("device_id", "name_long", "where_name", "structure_id", "last_is_online_change")
    state, log = F.struct("is_online", *columns), ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")
    in_log, by_time = (F.max_by(state, F.struct(*order)) for order in (log, ("kafka_timestamp", *log)))
    topic_partition = F.struct("kafka_topic", "kafka_partition")
    is_alone = F.min(topic_partition) == F.max(topic_partition)
    states = archive.where(F.col("is_online").isNotNull())
    last = states.groupBy("device_id").agg(F.when(is_alone, in_log).otherwise(by_time).alias("last"))
    return last.where(~F.col("last.is_online")).select(*(f"last.{column}" for column in columns))
