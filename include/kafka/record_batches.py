"""Record batches: a broker sends a batch whole, or cuts it off where a fetch is full.

The next fetch sends again what was cut off, so the size of a fetch decides how much is read twice. The best size
depends on the size of the batches, which only the log shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from include import kafka
from include.offsets import OffsetRange, TopicPartition

_LOOKS = 100
"""How often to ask for the client's statistics, which come 50 times a second."""


@dataclass(frozen=True)
class RecordBatch:
    """A batch of a topic partition."""

    records: int
    bytes: int
    """Bytes that a client receives with it, the protocol's own included."""


def sample_batch(of: OffsetRange) -> RecordBatch | None:
    """Return the range's second batch, as the range may begin inside the first; None when nothing is visible there.

    Raises ServiceUnreachable.
    """
    with kafka.reaching_kafka(of.topic_partition.topic):
        first = _read_batch(of.topic_partition, of.from_offset)
        if first is None or of.from_offset + first.records >= of.until_offset:
            return first
        return _read_batch(of.topic_partition, of.from_offset + first.records) or first


def _read_batch(tp: TopicPartition, offset: int) -> RecordBatch | None:
    counts: dict[str, int] = {}

    def note(text: str) -> None:
        statistics = json.loads(text)
        partitions = statistics["topics"].get(tp.topic, {"partitions": {}})["partitions"]
        counts["records"] = partitions.get(str(tp.partition), {"rxmsgs": 0})["rxmsgs"]
        counts["bytes"] = sum(broker["rxbytes"] for broker in statistics["brokers"].values())

    # A tiny fetch size brings one batch, and no other follows until its records are taken.
    options = {**kafka.few_records(1), "statistics.interval.ms": 20}
    reader = kafka.consumer(**options, stats_cb=note)
    try:
        reader.assign([ClientTopicPartition(tp.topic, tp.partition, offset)])
        if not _has_message(reader):
            return None
        reader.pause([ClientTopicPartition(tp.topic, tp.partition)])
        for _ in range(_LOOKS):
            # Serves the statistics callback; a paused consumer returns no message.
            reader.poll(0.05)
            if counts.get("records"):
                return RecordBatch(**counts)
    finally:
        reader.close()
    return None


def _has_message(reader: Consumer) -> bool:
    message = kafka.next_message(reader, kafka.TIMEOUT)
    if message is None:
        return False
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is None
