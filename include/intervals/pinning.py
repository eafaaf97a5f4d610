"""Times to offset ranges: resolved once, clamped to the ends seen then, tiling by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session
from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

from include import kafka, lake
from include.errors import ArchiveBehind, OffsetsLost, UsageError
from include.kafka.offset_search import first_records_at
from include.kafka.sources import describe_source, source_topic_partitions
from include.ledger.archive import landing
from include.ledger.archive.micro_batches import files_covering, positions, stored_topics
from include.ledger.database import session
from include.ledger.intervals import pins
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.quarantine import assign_replays
from include.ledger.streams import lines
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.pipelines.spec.lines import no_offsets
from include.settings import settings
from include.times import Interval, parse_duration

Offsets = Mapping[TopicPartition, int]


def pin_interval(
    pipeline: Pipeline, interval: Interval, *, pinned_by: str, repin: bool = False, patience: timedelta | None = None
) -> PinnedInterval:
    """The interval's ranges: those of the ledger, else resolved now and written before anything reads them.

    Earlier intervals that were never pinned are pinned first, from the topic's first record on, so
    that intervals tile whatever order they run in. Nothing is pinned beyond what the archive holds, which is
    waited for (`patience`, else the setting `archive_wait`).
    Raises ArchiveBehind, OffsetsLost, UsageError (a refused `repin`), ServiceUnreachable.
    """
    with session() as ledger:
        known = pins.find(ledger, pipeline.name, interval.from_time)
        if known is not None and not repin:
            return known
        if known is not None:
            check_repin(ledger, pipeline, known)
    topics = describe_source(pipeline.source)
    for topic, topic_id in stored_topics(pipeline.name).items():
        kafka.check_same_topic(pipeline.name, topics.get(topic), topic, topic_id)
    if (missing := set(pipeline.source.named) - topics.keys()) or not topics:
        if read := lines.sources_of(pipeline.name):
            raise no_offsets(read[0], pipeline.name)
        raise OffsetsLost(
            f"topic {', '.join(sorted(missing))} does not exist"
            if missing
            else f"no topic matches {pipeline.source.pattern!r}",
            remedy=f"produce into it first: ./tidemark produce {pipeline.name} --events 1000",
            pipeline=pipeline.name,
        )
    # Up to the end that open transactions hide: what they may still commit belongs to its own interval.
    bounds = kafka.offset_bounds(source_topic_partitions(pipeline.source, topics), "read_uncommitted")
    topic_ids = {topic: identity.topic_id for topic, identity in topics.items()}
    end = _first_offsets(interval.to_time, bounds)
    _await_archive(pipeline, interval, end, parse_duration(settings().archive_wait) if patience is None else patience)
    with session() as ledger:
        pins.lock_pinning(ledger, pipeline.name)
        known = pins.find(ledger, pipeline.name, interval.from_time)
        if known is not None:
            return _pin_again(ledger, pipeline, known, end, pinned_by) if repin else known
        first = pins.neighbour(ledger, pipeline.name, last=False)
        if first is not None and interval.from_time < first.interval.from_time:
            # Before everything that was ever pinned there is nothing left to read.
            at = {r.topic_partition: r.from_offset for r in first.ranges}
            step = first.interval
            while step.from_time > interval.from_time:
                step = Interval(step.from_time - pipeline.schedule.every, step.from_time)
                ranges = _ranges(at, at)
                pinned = pins.write(ledger, pipeline.name, step, ranges, first.topic_ids, pinned_by)
            return pinned
        last = pins.neighbour(ledger, pipeline.name, last=True)
        at = _continuation(pipeline, bounds, last, topic_ids)
        begin = _first_boundary(pipeline, interval, bounds) if last is None else last.interval.to_time
        while begin <= interval.from_time:
            step = Interval(begin, begin + pipeline.schedule.every)
            # Looked up once: every search for a boundary reads a batch of each topic partition.
            firsts = end if step.to_time == interval.to_time else _first_offsets(step.to_time, bounds)
            until = _not_before(at, firsts)
            pinned = pins.write(ledger, pipeline.name, step, _ranges(at, until), topic_ids, pinned_by)
            assign_replays(ledger, pipeline.name, pinned.id)
            at, begin = until, step.to_time
        return pinned


def check_repin(ledger: Session, pipeline: Pipeline, known: PinnedInterval) -> None:
    """Raise UsageError unless the interval's ranges may be resolved again without breaking the tiling."""
    last = pins.neighbour(ledger, pipeline.name, last=True)
    if last is not None and last.id != known.id:
        reason = f"{last.interval} is pinned after it and would no longer tile"
    elif closed_topics := [t for t, topic_id in known.topic_ids.items() if topic_id in closed(pipeline.name)]:
        reason = f"topic {', '.join(closed_topics)} was deleted since, and its offsets cannot be resolved any more"
    elif removed := landing.removed_ranges(pipeline.name, known.ranges):
        reason = f"the landing files of {removed[0]} were removed, its revisions are the archive's only copy"
    else:
        return
    raise UsageError(
        f"{known.interval} cannot be pinned again: {reason}",
        remedy="run it with the ranges it has; late records belong to a later interval",
        pipeline=pipeline.name,
    )


def _pin_again(
    ledger: Session,
    pipeline: Pipeline,
    known: PinnedInterval,
    end: Offsets,
    pinned_by: str,
) -> PinnedInterval:
    """Resolve the ranges of the last pinned interval again.

    They begin where they began and never become shorter: an offset that was delivered stays delivered.
    """
    check_repin(ledger, pipeline, known)
    at = {r.topic_partition: r.from_offset for r in known.ranges}
    reached = {r.topic_partition: r.until_offset for r in known.ranges}
    until = {**reached, **_not_before(reached, end)}
    return pins.replace_ranges(ledger, known, _ranges(at, until), pinned_by)


def pin_rest(ledger: Session, pipeline: Pipeline, topic: str, *, pinned_by: str) -> PinnedInterval | None:
    """Pin what is archived of a topic and in no interval yet, as one interval: no more will come of it.

    It follows the last pinned interval, or is that of the first archived record. None when nothing is left.
    The caller holds the pinning lock.
    """
    topic_ids = stored_topics(pipeline.name)
    last = pins.neighbour(ledger, pipeline.name, last=True)
    reached = positions(pipeline.name)
    at = _continuation(pipeline, dict.fromkeys(reached, (0, 0)), last, topic_ids)
    until = {tp: offset if tp.topic == topic else at.get(tp, 0) for tp, offset in reached.items()}
    ranges = _ranges(at, until)
    if not any(len(each) for each in ranges):
        return None
    begin = last.interval.to_time if last else pipeline.schedule.floor(_first_archived(pipeline, ranges))
    rest = Interval(begin, begin + pipeline.schedule.every)
    return pins.write(ledger, pipeline.name, rest, ranges, topic_ids, pinned_by)


def _first_archived(pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> datetime:
    """The earliest record timestamp in the files that hold the beginnings of the ranges."""
    begins = [replace(r, until_offset=r.from_offset + 1) for r in ranges if len(r)]
    found = []
    for outcome in ("archived", "empty", "quarantined"):
        for path in files_covering(pipeline.name, begins, outcome):
            bounds = lake.column_bounds(lake.footer(lake.uri(path)), "kafka_timestamp")
            if bounds is not None and isinstance(bounds[0], datetime):
                found.append(bounds[0] if bounds[0].tzinfo else bounds[0].replace(tzinfo=UTC))
    return min(found, default=datetime.now(UTC) - pipeline.schedule.every)


def _ranges(at: Offsets, until: Offsets) -> list[OffsetRange]:
    return [OffsetRange(tp, at.get(tp, 0), offset) for tp, offset in sorted(until.items())]


def _continuation(
    pipeline: Pipeline,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    last: PinnedInterval | None,
    topic_ids: Mapping[str, str],
) -> dict[TopicPartition, int]:
    """Where the next interval begins: where the last one ended, in another incarnation at its own beginning.

    A topic partition that the last interval lacks while it has the topic was added since, and begins at 0.
    """
    continued = {
        topic for topic, topic_id in (last.topic_ids if last else {}).items() if topic_ids.get(topic) == topic_id
    }
    archived = pins.first_committed_offsets(pipeline.name)
    at = {tp: archived.get(tp, low) for tp, (low, _) in bounds.items() if tp.topic not in continued}
    if last is not None:
        at.update({r.topic_partition: r.until_offset for r in last.ranges if r.topic_partition.topic in continued})
    return at


def _first_offsets(moment: datetime, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
    """The first offset at or after a time per topic partition; the end offset where no record follows."""
    found = first_records_at(moment, bounds)
    return {tp: end if (at := found.get(tp)) is None else min(at, end) for tp, (_, end) in bounds.items()}


def _not_before(at: Offsets, until: Offsets) -> dict[TopicPartition, int]:
    """Timestamps may run backwards: a boundary never lies before the one before it."""
    return {tp: max(at.get(tp, 0), offset) for tp, offset in until.items()}


def _first_boundary(
    pipeline: Pipeline, interval: Interval, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> datetime:
    earliest = kafka.first_timestamp(bounds)
    return min(interval.from_time, pipeline.schedule.floor(earliest)) if earliest else interval.from_time


def _await_archive(pipeline: Pipeline, interval: Interval, until: Offsets, patience: timedelta) -> None:
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
        stop=stop_after_delay(patience.total_seconds()),
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
            f"the archive has not reached the end of {interval}: {'; '.join(behind)}",
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
