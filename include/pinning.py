"""Times to offset ranges: resolved once, clamped to the ends seen then, tiling by construction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

from include import kafka
from include.errors import ArchiveBehind, OffsetsLost, UsageError
from include.intervals import Interval, parse_duration
from include.ledger import intervals
from include.ledger.database import session
from include.ledger.intervals import PinnedInterval
from include.ledger.micro_batches import positions, stored_topics
from include.ledger.quarantine import assign_replays
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.record_times import first_records_at
from include.settings import settings

Offsets = Mapping[TopicPartition, int]


def pin_interval(pipeline: Pipeline, interval: Interval, *, pinned_by: str, repin: bool = False) -> PinnedInterval:
    """The interval's ranges: those of the ledger, else resolved now and written before anything reads them.

    Earlier intervals that were never pinned are pinned first, from the topic's first record on, so
    that intervals tile whatever order they run in. Nothing is pinned beyond what the archive holds.
    Raises ArchiveBehind, OffsetsLost, UsageError (a refused `repin`), ServiceUnreachable.
    """
    with session() as ledger:
        known = intervals.find(ledger, pipeline.name, interval.from_time)
        last = intervals.neighbour(ledger, pipeline.name, last=True)
    if known is not None and not repin:
        return known
    if known is not None and last is not None and last.id != known.id:
        raise UsageError(
            f"{interval} cannot be pinned again: {last.interval} is pinned after it and would no longer tile",
            remedy="run it with the ranges it has; late records belong to a later interval",
            pipeline=pipeline.name,
        )
    topics = kafka.describe_topics(pipeline.source.subscribe)
    for topic, topic_id in stored_topics(pipeline.name).items():
        kafka.check_same_topic(pipeline.name, topics.get(topic), topic, topic_id)
    if missing := set(pipeline.source.subscribe) - topics.keys():
        raise OffsetsLost(
            f"topic {', '.join(sorted(missing))} does not exist",
            remedy=f"produce into it first: ./tidemark produce {pipeline.name} --events 1000",
            pipeline=pipeline.name,
        )
    # Up to the end that open transactions hide: what they may still commit belongs to its own interval.
    bounds = kafka.offset_bounds(kafka.topic_partitions_of(topics.values()), "read_uncommitted")
    topic_ids = {topic: identity.topic_id for topic, identity in topics.items()}
    _await_archive(pipeline, interval, _boundary(interval.to_time, bounds, {}))
    with session() as ledger:
        intervals.lock_pinning(ledger, pipeline.name)
        known = intervals.find(ledger, pipeline.name, interval.from_time)
        if known is not None and not repin:
            return known
        if known is not None:
            intervals.unpin(ledger, known)
        first = intervals.neighbour(ledger, pipeline.name, last=False)
        if first is not None and interval.from_time < first.interval.from_time:
            # Before everything that was ever pinned there is nothing left to read.
            at = {r.topic_partition: r.from_offset for r in first.ranges}
            step = first.interval
            while step.from_time > interval.from_time:
                step = Interval(step.from_time - pipeline.schedule.every, step.from_time)
                pinned = intervals.write(ledger, pipeline.name, step, _ranges(at, at), topic_ids, pinned_by)
            return pinned
        last = intervals.neighbour(ledger, pipeline.name, last=True)
        at = _start(pipeline, bounds) if last is None else {r.topic_partition: r.until_offset for r in last.ranges}
        begin = _first_boundary(pipeline, interval, bounds) if last is None else last.interval.to_time
        while begin <= interval.from_time:
            step = Interval(begin, begin + pipeline.schedule.every)
            until = _boundary(step.to_time, bounds, at)
            pinned = intervals.write(ledger, pipeline.name, step, _ranges(at, until), topic_ids, pinned_by)
            assign_replays(ledger, pipeline.name, pinned.id)
            at, begin = until, step.to_time
        return pinned


def _ranges(at: Offsets, until: Offsets) -> list[OffsetRange]:
    return [OffsetRange(tp, at.get(tp, 0), offset) for tp, offset in sorted(until.items())]


def _boundary(
    moment: datetime, bounds: Mapping[TopicPartition, tuple[int, int]], at_least: Offsets
) -> dict[TopicPartition, int]:
    """The first offset at or after a time per topic partition; the end offset where no record follows."""
    found = first_records_at(moment, bounds)
    offsets = {}
    for tp, (_, end) in bounds.items():
        offset = found.get(tp)
        # Timestamps may run backwards: a boundary never lies before the one before it.
        offsets[tp] = max(at_least.get(tp, 0), end if offset is None else min(offset, end))
    return offsets


def _start(pipeline: Pipeline, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
    archived = intervals.first_committed_offsets(pipeline.name)
    return {tp: archived.get(tp, low) for tp, (low, _) in bounds.items()}


def _first_boundary(
    pipeline: Pipeline, interval: Interval, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> datetime:
    earliest = kafka.first_timestamp(bounds)
    return min(interval.from_time, pipeline.schedule.floor(earliest)) if earliest else interval.from_time


def _await_archive(pipeline: Pipeline, interval: Interval, until: Offsets) -> None:
    """Wait until the archive has committed everything below the interval's end. Raises ArchiveBehind."""

    def missing() -> list[str]:
        reached = positions(pipeline.name)
        return [
            f"{tp} is at {reached.get(tp, 0)} of {offset}"
            for tp, offset in sorted(until.items())
            if reached.get(tp, 0) < offset
        ]

    waiting = retry(
        retry=retry_if_result(bool),
        stop=stop_after_delay(parse_duration(settings().archive_wait).total_seconds()),
        wait=wait_fixed(1),
    )(missing)
    try:
        waiting()
    except RetryError as error:
        behind = error.last_attempt.result()
        remedy = f"is the stream running? ./tidemark status; ./tidemark stream {pipeline.name}"
        if opened := _open_transactions(until):
            behind += opened
            remedy = f"end the producer's transaction (kafka-transactions.sh find-hanging, abort), or: {remedy}"
        raise ArchiveBehind(
            f"the archive has not reached the end of {interval} within {settings().archive_wait}: {'; '.join(behind)}",
            remedy=remedy,
            pipeline=pipeline.name,
        ) from None


def _open_transactions(until: Offsets) -> list[str]:
    """Where a transaction that was begun and not ended keeps readers from the offsets below `until`."""
    stable = kafka.offset_bounds(until)
    return [
        f"{tp}: a transaction is open at offset {stable[tp][1]}, nothing behind it can be read"
        for tp, offset in sorted(until.items())
        if stable[tp][1] < offset
    ]
