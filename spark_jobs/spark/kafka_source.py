"""Spark's only way to Kafka: a stream over topics, a batch over explicit offset ranges, and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from include import kafka
from include.errors import MessageRefused, UsageError, one_line
from include.kafka.fenced_producer import Message
from include.kafka.record_batches import sample_batch
from include.kafka.topics import MAX_MESSAGE_BYTES
from include.offsets import OffsetRange, TopicPartition, assignment_json, offsets_json
from include.pipelines.spec import KafkaTopics
from include.pipelines.spec.sources import INTERNAL
from include.settings import settings
from include.waiting import wait_for
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.thrown import Thrown

_FIXED = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    # A reader must not create the topic that was deleted under it, as brokers let it by default.
    "kafka.allow.auto.create.topics": "false",
}

_LARGEST_REQUEST = 32 * 1024 * 1024
"""Bytes of a message that Spark's producer sends: as many as its buffer holds. The topic's limit alone decides."""

_DEFAULT_LIMIT = 1_048_588
"""Bytes of a batch that topics take by default: enough for every flag (`spark_jobs/views/flags.py`)."""

_ONE_BATCH = 1
"""Bytes of a fetch that brings one batch: the first batch of a fetch always comes whole."""

_LARGE_BATCH = 32 * 1024
"""Bytes from which a batch is worth a fetch of its own."""

_FEW_BATCHES = 500
"""Up to this many batches of a topic partition are fetched one by one, however small."""

_BATCHES_AT_ONCE = 16
"""A fetch of small batches holds this many: at most the last one is sent twice."""

_FETCH_BYTES = 1024 * 1024
"""Kafka's own default for the bytes of a fetch from a topic partition."""

_NEW_TOPIC_SECONDS = 3
"""How long a topic may be unknown to a broker after it was created."""

KAFKA_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""What Spark's Kafka source delivers, headers included, as DDL."""


def _client_options() -> dict[str, str]:
    return {f"kafka.{key}": value for key, value in settings().kafka_java_options().items()}


def read_stream(
    spark: SparkSession,
    source: KafkaTopics,
    starting_offsets: Mapping[TopicPartition, int],
    *,
    in_real_time: bool = False,
) -> DataFrame:
    """Return the topics as a stream. Columns: Spark's Kafka columns with headers.

    `starting_offsets` names every topic partition, or none where there is a checkpoint to continue from. In real time
    there are no micro-batches whose size to limit.
    """
    most = settings().max_offsets_per_trigger or source.max_offsets_per_trigger
    options = {
        **_client_options(),
        **source.options,
        **_FIXED,
        **_topics(source),
        "startingOffsets": offsets_json(starting_offsets) if starting_offsets else "earliest",
        **({} if in_real_time else {"maxOffsetsPerTrigger": str(most)}),
    }
    return spark.readStream.format("kafka").options(**options).load()


def _topics(source: KafkaTopics) -> dict[str, str]:
    if source.pattern:
        # Spark searches the pattern inside names; a source's pattern matches whole names.
        return {"subscribePattern": f"^(?!{INTERNAL})(?:{source.pattern})$"}
    if source.assign:
        return {"assign": json.dumps({topic: sorted(numbers) for topic, numbers in source.assign.items()})}
    return {"subscribe": ",".join(source.subscribe)}


def read_ranges(spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return exactly the records of the ranges. Columns: Spark's Kafka columns with headers.

    Topic partitions are assigned, so that a new one does not fail the read. Empty ranges are left out.
    """
    wanted = [r for r in ranges if len(r)]
    if not wanted:
        return empty_frame(spark, struct_of(KAFKA_COLUMNS))
    options = {
        "kafka.max.partition.fetch.bytes": str(fetch_bytes(wanted)),
        **_client_options(),
        **_FIXED,
        "assign": assignment_json(wanted),
        "startingOffsets": offsets_json({r.topic_partition: r.from_offset for r in wanted}),
        "endingOffsets": offsets_json({r.topic_partition: r.until_offset for r in wanted}),
    }
    return spark.read.format("kafka").options(**options).load()


def fetch_bytes(ranges: Sequence[OffsetRange]) -> int:
    """Return a fetch size with which almost nothing is sent twice or from beyond the end of a range."""
    longest = max(ranges, key=len)
    if len(longest) <= _FEW_BATCHES:
        return _ONE_BATCH
    batch = sample_batch(longest)
    if batch is None:
        return _FETCH_BYTES
    if batch.bytes >= _LARGE_BATCH or len(longest) / batch.records <= _FEW_BATCHES:
        return _ONE_BATCH
    return batch.bytes * _BATCHES_AT_ONCE


def read_topic(spark: SparkSession, topic: str, since: datetime | None = None) -> DataFrame:
    """Return the records of a compacted topic as it is now: all, or those written at a time or later.

    Columns: Spark's Kafka columns with headers. Raises ServiceUnreachable, and UsageError where there is no such topic.
    """
    # A broker may learn of a new topic a moment after it was created.
    described = wait_for(lambda: kafka.describe_topics([topic]), seconds=_NEW_TOPIC_SECONDS, every=0.2)
    if not described:
        raise UsageError(
            f"the topic {topic} does not exist, so no values of its speed view can be read",
            remedy="start the stream that writes it: the stream creates the topic, or names the way on",
        )
    if since is not None:
        bounds = kafka.offset_bounds(kafka.topic_partitions_of(described.values()))
        offsets = kafka.offsets_at(since, bounds)
        firsts = {tp: end if (at := offsets[tp]) is None else min(at, end) for tp, (_, end) in bounds.items()}
        return read_ranges(spark, [OffsetRange(tp, first, bounds[tp][1]) for tp, first in firsts.items()])
    whole = {"subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    return spark.read.format("kafka").options(**{**_client_options(), **_FIXED, **whole}).load()


def messages_of(messages: DataFrame) -> Iterator[Message]:
    """Yield messages to the driver, a Spark partition at a time.

    Columns: topic, key, value, and `partition`, the topic partition, for messages that do not go to their key's.
    """
    place = ["partition"] if "partition" in messages.columns else []
    for topic, key, value, *at in _as_bytes(messages, place).toLocalIterator(prefetchPartitions=True):
        message = topic, None if key is None else bytes(key), None if value is None else bytes(value)
        yield (*message, {}, at[0]) if at else message


def held_messages_of(messages: DataFrame) -> Iterator[Message]:
    """Yield messages to the driver, which holds all of them meanwhile: a fifth of the CPU time of `messages_of`.

    Columns: topic, key, value.
    """
    for batch in _as_bytes(messages).toArrow().to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _as_bytes(messages: DataFrame, more: Sequence[str] = ()) -> DataFrame:
    return messages.select("topic", *(F.col(name).cast("BINARY").alias(name) for name in ("key", "value")), *more)


def write_stream(messages: DataFrame, topic: str) -> DataStreamWriter:
    """Return a writer of a stream of messages to a topic. Columns: key, value."""
    options = {"kafka.max.request.size": str(_LARGEST_REQUEST), **_client_options(), "topic": topic}
    return messages.writeStream.format("kafka").options(**options)


def too_large(thrown: Thrown) -> MessageRefused | None:
    """Return the error of a message of `write_stream` that the topic does not take; None for any other failure."""
    if "org.apache.kafka.common.errors.RecordTooLargeException" not in thrown.kinds:
        return None
    return MessageRefused(
        f"Kafka refuses a message for the topic of the flags: {one_line(thrown.message)}",
        remedy=f"set {MAX_MESSAGE_BYTES} of that topic to {_DEFAULT_LIMIT}, Kafka's default, or more; then start the "
        "stream again",
    )
