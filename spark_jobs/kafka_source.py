"""The only Kafka reads of Spark: a stream over topics, and a batch over explicit offset ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from include.offsets import OffsetRange, TopicPartition, assignment_json, offsets_json
from include.pipelines.spec import KafkaTopics
from include.settings import settings
from spark_jobs.local_frames import empty_frame
from spark_jobs.schemas import struct_of

_FIXED = {"includeHeaders": "true", "failOnDataLoss": "true", "kafka.isolation.level": "read_committed"}


_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def _client_options() -> dict[str, str]:
    return {f"kafka.{key}": value for key, value in settings().kafka_client_options().items()}


def read_stream(spark: SparkSession, source: KafkaTopics, starting_offsets: Mapping[TopicPartition, int]) -> DataFrame:
    """The topics as a stream. Columns: Spark's Kafka columns with headers.

    `starting_offsets` names every topic partition, or none where there is a checkpoint to continue from.
    """
    options = {
        **_client_options(),
        **_FIXED,
        "subscribe": ",".join(source.subscribe),
        "startingOffsets": offsets_json(starting_offsets) if starting_offsets else source.starting_offsets,
        "maxOffsetsPerTrigger": str(source.max_offsets_per_trigger),
    }
    return spark.readStream.format("kafka").options(**options).load()


def read_ranges(spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Exactly the records of the ranges. Columns: Spark's Kafka columns with headers.

    Assigned, not subscribed: a partition added since does not disturb it. Empty ranges are left out.
    """
    wanted = [r for r in ranges if len(r)]
    if not wanted:
        return empty_frame(spark, struct_of(_COLUMNS))
    options = {
        **_client_options(),
        **_FIXED,
        "assign": assignment_json(wanted),
        "startingOffsets": offsets_json({r.topic_partition: r.from_offset for r in wanted}),
        "endingOffsets": offsets_json({r.topic_partition: r.until_offset for r in wanted}),
    }
    return spark.read.format("kafka").options(**options).load()


def read_topic(spark: SparkSession, topic: str) -> DataFrame:
    """A whole topic as it is now, for compacted topics. Columns: Spark's Kafka columns."""
    options = {**_client_options(), "subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    options["kafka.isolation.level"] = "read_committed"
    return spark.read.format("kafka").options(**options).load()


def write_topic(messages: DataFrame, topic: str) -> None:
    """Write messages to a topic. Columns: key, value; a null value deletes the key of a compacted topic."""
    messages.write.format("kafka").options(**_client_options()).option("topic", topic).save()
