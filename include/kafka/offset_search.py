"""Find offsets for times by the records themselves: Kafka's time index trusts every timestamp.

The index leads to the first record with a timestamp at or after a time. Two things mislead it: transaction markers,
which carry the broker's clock and are not records, and timestamps that are too far ahead (`timestamps.py`). The index
never shows what lies after such a timestamp; there the log itself is searched.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from include import kafka
from include.errors import ServiceUnreachable
from include.kafka.timestamps import NEIGHBOURS, Boundary, RecordTime, TimestampRule, find_boundary
from include.offsets import TopicPartition
from include.settings import settings

Spans = Mapping[TopicPartition, tuple[int, int]]
"""Where to search in each topic partition: from an offset, included, to another, excluded."""

SCANNED = 100_000
"""How many offsets are read one by one; in a longer span, bisection first finds where to read."""

_PATIENCE = 30.0
"""Seconds without any answer until the broker counts as unreachable."""
_UNCOMMITTED = {"isolation.level": "read_uncommitted"}
_AT_ONCE = 1000


def find_boundaries(moment: datetime, spans: Spans, rule: TimestampRule) -> dict[TopicPartition, Boundary]:
    """Return, by topic partition, the first record of its span that ends an interval at `moment`.

    Without such a record it is the end of the span. Records of open and aborted transactions count.
    Raises ServiceUnreachable.
    """
    boundaries = {tp: Boundary(until) for tp, (_, until) in spans.items()}
    indexed = kafka.offsets_at(moment, spans, "read_uncommitted")
    begins = {tp: max(at, spans[tp][0]) for tp, at in indexed.items() if at is not None}
    begins = {tp: at for tp, at in begins.items() if at < spans[tp][1]}
    if not begins:
        return boundaries
    milliseconds = int(moment.timestamp() * 1000)
    with kafka.reaching_kafka(*kafka.topics_of(spans)):
        reader = kafka.consumer(**kafka.few_records(), **_UNCOMMITTED)
        try:
            for tp, window in _read_windows(reader, begins).items():
                span = begins[tp], spans[tp][1]
                boundaries[tp] = _find_boundary(reader, tp, window, span, milliseconds, rule)
        finally:
            reader.close()
    return boundaries


def first_times(spans: Spans, rule: TimestampRule) -> dict[TopicPartition, datetime]:
    """Return the time at which the records of a span begin, for topic partitions that have any in theirs.

    A timestamp that the span's next records do not confirm is left out. Raises ServiceUnreachable.
    """
    if not spans:
        return {}
    begins = {tp: begin for tp, (begin, _) in spans.items()}
    with kafka.reaching_kafka(*kafka.topics_of(spans)):
        reader = kafka.consumer(**kafka.few_records(), **_UNCOMMITTED)
        try:
            windows = _read_windows(reader, begins)
        finally:
            reader.close()
    times = {tp: rule.beginning([r for r in window if r.offset < spans[tp][1]]) for tp, window in windows.items()}
    return {tp: datetime.fromtimestamp(at / 1000, UTC) for tp, at in times.items() if at is not None}


def _find_boundary(
    reader: Consumer,
    tp: TopicPartition,
    window: Sequence[RecordTime],
    span: tuple[int, int],
    moment: int,
    rule: TimestampRule,
) -> Boundary:
    """Return the boundary in a span that begins with the window: usually its first record, else one further on."""
    first = window[0] if window and window[0].milliseconds >= moment else None
    if first is not None and not rule.is_odd(tp, first, window[1:]):
        return Boundary(min(first.offset, span[1]))
    begin = _bisect(reader, tp, span, moment, rule)
    with closing(_read_on(tp, begin)) as records:
        boundary = find_boundary(tp, records, moment, span[1], rule)
    if first is not None and first.offset < min(begin, span[1]):
        # The record that misled the index lies before the part that was read.
        return replace(boundary, odd_count=boundary.odd_count + 1, first_odd=first)
    return boundary


def _bisect(reader: Consumer, tp: TopicPartition, span: tuple[int, int], moment: int, rule: TimestampRule) -> int:
    """Return an offset of the span, before its boundary, from which to read on: at most SCANNED away where possible."""
    low, high = span
    while high - low > SCANNED:
        middle = (low + high) // 2
        window = _read_windows(reader, {tp: middle})[tp]
        if not window or rule.has_reached(moment, window):
            high = middle
        else:
            low = middle
    return low


def _read_windows(reader: Consumer, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[RecordTime]]:
    """Return the first record at or after each offset and the NEIGHBOURS that follow it, as far as there are any."""
    windows: dict[TopicPartition, list[RecordTime]] = {tp: [] for tp in begins}
    reading = set(begins)
    reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in begins.items()])
    while reading:
        message = kafka.next_message(reader, _PATIENCE)
        if message is None:
            raise _unreachable(", ".join(map(str, sorted(reading))))
        tp = TopicPartition(message.topic(), message.partition())
        if tp not in reading:
            continue
        if not _is_end(message):
            windows[tp].append(RecordTime(message.offset(), message.timestamp()[1]))
        if _is_end(message) or len(windows[tp]) > NEIGHBOURS:
            reading.discard(tp)
            reader.incremental_unassign([confluent_kafka.TopicPartition(tp.topic, tp.partition)])
    return windows


def _read_on(tp: TopicPartition, begin: int) -> Generator[RecordTime]:
    """Yield the records from an offset on, to the end of the topic partition."""
    reader = kafka.consumer(**{"enable.partition.eof": True, "queued.max.messages.kbytes": 16 * 1024}, **_UNCOMMITTED)
    try:
        reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, begin)])
        while True:
            messages = [each for each in reader.consume(_AT_ONCE, 0.02) if each.topic() is not None]
            if not messages and (waited_for := kafka.next_message(reader, _PATIENCE)) is not None:
                messages = [waited_for]
            if not messages:
                raise _unreachable(str(tp))
            for message in messages:
                if _is_end(message):
                    return
                yield RecordTime(message.offset(), message.timestamp()[1])
    finally:
        reader.close()


def _is_end(message: Message) -> bool:
    """Return whether the end of the topic partition was reached. Raises KafkaException for every other event."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def _unreachable(what: str) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"Kafka at {settings().kafka_address()}: nothing of {what} within {_PATIENCE:.0f} s",
        remedy="./tidemark status; ./tidemark up kafka",
    )
