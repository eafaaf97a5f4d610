"""Times to offsets by what records say: transaction markers carry the broker's clock and are no records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException

from include import kafka
from include.errors import ServiceUnreachable
from include.offsets import TopicPartition
from include.settings import settings

_PATIENCE = 30.0
"""Seconds without any answer until the broker counts as unreachable."""


def first_records_at(
    moment: datetime, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int | None]:
    """The first record of each topic partition with a timestamp at or after `moment`; None when there is none.

    Records of open and aborted transactions count. Kafka's time index also finds transaction markers,
    which are written with the broker's clock: behind records of the past, a marker would end an interval
    at its first transaction. So what the index finds is where to begin reading; mostly the first record
    there is the one. Raises ServiceUnreachable.
    """
    indexed = kafka.offsets_at(moment, bounds, "read_uncommitted")
    found: dict[TopicPartition, int | None] = dict.fromkeys(bounds)
    begins = {tp: at for tp, at in indexed.items() if at is not None and at < bounds[tp][1]}
    if not begins:
        return found
    with kafka.reaching_kafka():
        reader = kafka.consumer(**kafka.few_records(), **{"isolation.level": "read_uncommitted"})
        try:
            found.update(_read(reader, begins, bounds, int(moment.timestamp() * 1000)))
        finally:
            reader.close()
    return found


def _read(
    reader: Consumer,
    begins: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    milliseconds: int,
) -> dict[TopicPartition, int | None]:
    found: dict[TopicPartition, int | None] = {}
    reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in begins.items()])
    while len(found) < len(begins):
        message = reader.poll(_PATIENCE)
        if message is None:
            missing = ", ".join(str(tp) for tp in begins.keys() - found.keys())
            raise ServiceUnreachable(
                f"Kafka at {settings().kafka_address()}: nothing of {missing} within {_PATIENCE:.0f} s",
                remedy="./tidemark status; ./tidemark up kafka",
            )
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        tp = TopicPartition(message.topic(), message.partition())
        if tp in found:
            continue
        if error is not None or message.offset() >= bounds[tp][1]:
            found[tp] = None
        elif message.timestamp()[1] >= milliseconds:
            found[tp] = message.offset()
        else:
            continue
        reader.incremental_unassign([confluent_kafka.TopicPartition(tp.topic, tp.partition)])
    return found
