"""First and end offsets of topic partitions, offsets of a time, and what retention has left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message
from confluent_kafka.admin import OffsetSpec

from include.errors import OffsetsLost, ServiceUnreachable
from include.kafka.client import Progress, admin, asking, consumer, few_records, next_message
from include.kafka.refusals import TIMEOUT, asked_again, reaching_kafka
from include.offsets import OffsetRange, TopicPartition
from include.times import time_of

_NO_TIME = datetime.fromtimestamp(0, UTC)
"""Timestamps until then stand for none."""

END_TRANSACTION = "end the producer's transaction (kafka-transactions.sh find-hanging, abort)"
"""What to do about an open transaction that holds readers back."""

Isolation = Literal["read_committed", "read_uncommitted"]
"""Whether records of aborted and open transactions count."""


def offset_bounds(
    topic_partitions: Iterable[TopicPartition], isolation: Isolation = "read_committed"
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the earliest and the end offset of each topic partition.

    For read_committed the end is the last stable offset: an open transaction holds it back.
    Raises ServiceUnreachable.
    """
    wanted = sorted(set(topic_partitions))
    with reaching_kafka(*topics_of(wanted)), asking(isolation) as reader:
        # Not `get_watermark_offsets`: it forgets the refusal of one of its two requests when the other is answered, and
        # fills in the end as the earliest offset.
        earliest = _listed(reader, wanted, OFFSET_BEGINNING)
        ends = _listed(reader, wanted, OFFSET_END)
    return {tp: (earliest[tp], ends[tp]) for tp in wanted}


def end_offsets(topic_partitions: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
    """Return the end offset of each topic partition, as `offset_bounds` does. Raises ServiceUnreachable."""
    wanted = sorted(set(topic_partitions))
    with reaching_kafka(*topics_of(wanted)), asking(isolation) as reader:
        return _listed(reader, wanted, OFFSET_END)


def offsets_at(
    moment: datetime, topic_partitions: Iterable[TopicPartition], isolation: Isolation = "read_committed"
) -> dict[TopicPartition, int | None]:
    """Return the first offset with a timestamp at or after `moment`, by Kafka's time index; None without one.

    Transaction markers count, with the broker's clock as their timestamp. Raises ServiceUnreachable.
    """
    wanted = sorted(set(topic_partitions))
    with reaching_kafka(*topics_of(wanted)):
        reader = consumer(**{"isolation.level": isolation})
        try:
            indexed = _listed(reader, wanted, int(moment.timestamp() * 1000))
        finally:
            reader.close()
    return {tp: offset if offset >= 0 else None for tp, offset in indexed.items()}


def newest_timestamp(topic_partitions: Iterable[TopicPartition]) -> datetime | None:
    """Return the latest timestamp in the topic partitions, now if it is beyond the calendar; None when all are empty.

    By Kafka's time index: transaction markers count. Raises ServiceUnreachable.
    """
    wanted = sorted(set(topic_partitions))

    def ask() -> int:
        asked = {_client_tp(tp): OffsetSpec.max_timestamp() for tp in wanted}
        # A client that nothing holds any more answers nothing.
        client = admin()
        answers = client.list_offsets(asked, request_timeout=TIMEOUT).values() if asked else ()
        return max((each.result(TIMEOUT).timestamp for each in answers), default=-1)

    with reaching_kafka(*topics_of(wanted)):
        latest = asked_again(ask)
    return (time_of(latest) or datetime.now(UTC)) if latest >= 0 else None


def _listed(reader: Consumer, wanted: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
    """Return each topic partition's offset at a time in milliseconds, or at one of Kafka's two names for the ends.

    Raises KafkaException.
    """

    def ask() -> list[confluent_kafka.TopicPartition]:
        asked = [_client_tp(tp, at) for tp in wanted]
        answered = reader.offsets_for_times(asked, timeout=TIMEOUT) if asked else []
        for each in answered:
            # The offset of such an answer is still the time that was asked for.
            if each.error is not None:
                raise KafkaException(each.error)
        return answered

    return {TopicPartition(each.topic, each.partition): each.offset for each in asked_again(ask)}


def first_timestamp(earliest: Mapping[TopicPartition, tuple[int, int]]) -> datetime | None:
    """Return the earliest timestamp among the first records of the topic partitions; None when all are empty."""
    times: list[datetime] = []
    with reaching_kafka(*topics_of(earliest)):
        reader = consumer(**few_records())
        try:
            for tp, (low, high) in earliest.items():
                if low >= high:
                    continue
                reader.assign([_client_tp(tp, low)])
                # Nothing visible up to the partition's end comes as an error.
                if (message := next_message(reader, TIMEOUT)) is None:
                    raise ServiceUnreachable(f"Kafka did not send {tp} from {low} on", remedy="./tidemark status")
                if message.error() is None and (moment := time_of(message.timestamp()[1])):
                    times.append(moment)
        finally:
            reader.close()
    return min(times, default=None)


def record_times(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, datetime]:
    """Return the timestamp of the first visible record at or after each offset, as far as they came in time.

    A record without a timestamp, or with one beyond the calendar, is left out, too. Raises ServiceUnreachable.
    """
    found = first_messages(offsets, patience=3.0)
    times = {tp: time_of(each.timestamp()[1]) for tp, each in found.items() if each.error() is None}
    return {tp: moment for tp, moment in times.items() if moment is not None and moment > _NO_TIME}


def first_messages(
    offsets: Mapping[TopicPartition, int], patience: float, progress: Progress | None = None
) -> dict[TopicPartition, Message]:
    """Return the first visible record at or after each offset, as far as they came within `patience` seconds.

    A message with an error stands for the end of the log, and for an offset that it does not hold. `progress` tells
    afterwards how far was fetched. Raises ServiceUnreachable.
    """
    found: dict[TopicPartition, Message] = {}
    with reaching_kafka(*topics_of(offsets)):
        reader = consumer(**few_records(), **(progress.options() if progress else {}))
        try:
            reader.assign([_client_tp(tp, offset) for tp, offset in offsets.items()])
            deadline = time.monotonic() + patience
            while len(found) < len(offsets) and (left := deadline - time.monotonic()) > 0:
                message = next_message(reader, left)
                if message is None:
                    break
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                if tp not in found:
                    found[tp] = message
                    reader.pause([_client_tp(tp)])
        finally:
            reader.close()
    return found


def check_retained(pipeline: str, ranges: Iterable[OffsetRange]) -> None:
    """Raise OffsetsLost with the exact loss when retention has cut into one of the ranges."""
    wanted = [r for r in ranges if len(r)]
    bounds = offset_bounds(r.topic_partition for r in wanted)
    losses = []
    for each in wanted:
        low, high = bounds[each.topic_partition]
        if low > each.from_offset:
            lost = OffsetRange(each.topic_partition, each.from_offset, min(low, each.until_offset))
            losses.append(f"{lost} ({len(lost)} offsets) is below the earliest retained offset {low}")
        elif high < each.until_offset:
            losses.append(f"{each} reaches beyond the end offset {high}")
    if losses:
        raise OffsetsLost(
            "; ".join(losses),
            remedy="read what was archived of them instead: --source archive; if something was removed before it was "
            f"archived, the stream stops too and names the way on: ./tidemark stream {pipeline} --until-caught-up",
            pipeline=pipeline,
        )


def unread_error(pipeline: str, lost: Iterable[OffsetRange]) -> OffsetsLost:
    """Return the error that says which offsets were removed before the archive query read them."""
    return OffsetsLost(
        "; ".join(f"{each} ({len(each)} offsets) was removed before it was archived" for each in lost),
        remedy="these records are gone from Kafka: restore the topic, or go on without them: "
        f'./tidemark accept-loss {pipeline} --reason "…"',
        pipeline=pipeline,
    )


def topics_of(topic_partitions: Iterable[TopicPartition]) -> set[str]:
    """Return the topics of topic partitions."""
    return {tp.topic for tp in topic_partitions}


def _client_tp(tp: TopicPartition, offset: int = -1001) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)
