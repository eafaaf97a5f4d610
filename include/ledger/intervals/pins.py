"""Pinning intervals in the ledger: pinned once, then only read (`pinned`). Each function is one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from include.errors import TidemarkError
from include.ledger.archive.archived_offsets import before_archive
from include.ledger.archive.positions import ARCHIVE, of_query, overlaps
from include.ledger.completeness.adjoining import add_adjoining
from include.ledger.database import lock, session
from include.ledger.intervals.odd_timestamps import OddTimestamps
from include.ledger.intervals.pinned import Neighbours as Neighbours
from include.ledger.intervals.pinned import PinnedInterval as PinnedInterval
from include.ledger.intervals.states import IntervalState
from include.ledger.models import Build, IntervalRange, IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange, Repin
from include.ledger.quarantine import assign_replays, check_namesakes
from include.offsets import OffsetRange, TopicPartition, without
from include.times import Interval


def pinned_of(ledger: Session, row: IntervalRow) -> PinnedInterval:
    """Return the interval of a ledger row with its ranges."""
    rows = ledger.scalars(
        select(IntervalRange)
        .where(IntervalRange.interval_id == row.id)
        .order_by(IntervalRange.topic, IntervalRange.topic_partition)
    ).all()
    ranges = [
        OffsetRange(TopicPartition(r.topic, r.topic_partition), r.from_offset, r.until_offset, r.topic_id) for r in rows
    ]
    odd = [
        OddTimestamps(each.topic_partition, r.odd_timestamps, r.first_odd_offset, r.first_odd_timestamp)
        for each, r in zip(ranges, rows, strict=True)
        if r.first_odd_offset is not None and r.first_odd_timestamp is not None
    ]
    return PinnedInterval(
        row.id,
        row.pipeline,
        Interval(row.from_time, row.to_time),
        tuple(ranges),
        {r.topic: r.topic_id for r in rows},
        tuple(odd),
    )


def is_open(pinned: PinnedInterval) -> bool:
    """Return whether an interval, as it is pinned now, has not been registered."""
    with session() as ledger:
        return ledger.get_one(IntervalRow, pinned.id).state != IntervalState.REGISTERED


def _of_pipeline(pipeline: str) -> Select[IntervalRow]:
    return select(IntervalRow).where(IntervalRow.pipeline == pipeline)


def _first_of(ledger: Session, wanted: Select[IntervalRow]) -> PinnedInterval | None:
    row = ledger.scalar(wanted.limit(1))
    return pinned_of(ledger, row) if row else None


def pinned_interval(interval_id: int) -> PinnedInterval:
    """Return a pinned interval by its number."""
    with session() as ledger:
        return pinned_of(ledger, ledger.get_one(IntervalRow, interval_id))


def find_interval(pipeline: str, from_time: datetime) -> PinnedInterval | None:
    """Return the pinned interval that begins then."""
    with session() as ledger:
        return _first_of(ledger, _of_pipeline(pipeline).where(IntervalRow.from_time == from_time))


def last_interval(pipeline: str) -> PinnedInterval | None:
    """Return the pipeline's last pinned interval."""
    with session() as ledger:
        return _first_of(ledger, _of_pipeline(pipeline).order_by(IntervalRow.from_time.desc()))


def last_before(pipeline: str, moment: datetime) -> PinnedInterval | None:
    """Return the pipeline's last pinned interval that begins before a time."""
    wanted = _of_pipeline(pipeline).where(IntervalRow.from_time < moment)
    with session() as ledger:
        return _first_of(ledger, wanted.order_by(IntervalRow.from_time.desc()))


def find_neighbours(pipeline: str, interval: Interval) -> Neighbours:
    """Return the nearest pinned intervals before and after one."""
    with session() as ledger:
        return neighbours_of(ledger, pipeline, interval)


def neighbours_of(ledger: Session, pipeline: str, interval: Interval) -> Neighbours:
    """Return the nearest pinned intervals before and after one, within a transaction."""
    every, at = _of_pipeline(pipeline), interval.from_time
    return Neighbours(
        _first_of(ledger, every.where(IntervalRow.from_time < at).order_by(IntervalRow.from_time.desc())),
        _first_of(ledger, every.where(IntervalRow.from_time > at).order_by(IntervalRow.from_time)),
    )


def write_interval(
    pipeline: str,
    interval: Interval,
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str],
    *,
    pinned_by: str,
    between: Neighbours,
    odd_timestamps: Iterable[OddTimestamps] = (),
    delivers_replays: bool = False,
) -> PinnedInterval | None:
    """Write a pinned interval; None when its neighbours are not (or no longer) those that it was resolved between.

    With `delivers_replays` it delivers what was replayed out of quarantine and has no interval yet.
    Raises TidemarkError when the ranges overlap a neighbour's, or leave a hole between adjacent intervals.
    """
    with session() as ledger:
        lock_pinning(ledger, pipeline)
        known = _first_of(ledger, _of_pipeline(pipeline).where(IntervalRow.from_time == interval.from_time))
        if known is not None or neighbours_of(ledger, pipeline, interval) != between:
            return None
        pinned = write(
            ledger, pipeline, interval, ranges, topic_ids, pinned_by=pinned_by, odd_timestamps=odd_timestamps
        )
        if delivers_replays:
            assign_replays(ledger, pipeline, pinned.id)
        return pinned


def lock_pinning(ledger: Session, pipeline: str) -> None:
    """Let one transaction at a time pin intervals of the pipeline."""
    lock(ledger, f"pin:{pipeline}")


def write(
    ledger: Session,
    pipeline: str,
    interval: Interval,
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str],
    *,
    pinned_by: str,
    odd_timestamps: Iterable[OddTimestamps] = (),
) -> PinnedInterval:
    """Write a pinned interval within a transaction that holds the pinning lock.

    Raises TidemarkError when the ranges overlap a neighbour's, or leave a hole between adjacent intervals.
    """
    row = IntervalRow(pipeline=pipeline, from_time=interval.from_time, to_time=interval.to_time, pinned_by=pinned_by)
    row.state = IntervalState.PINNED
    add_adjoining(ledger, row)
    _add_ranges(ledger, row.id, ranges, topic_ids, odd_timestamps)
    pinned = pinned_of(ledger, row)
    # A topic may have no range here, although a neighbour has offsets of it.
    _check_tiling(replace(pinned, topic_ids=topic_ids), neighbours_of(ledger, pipeline, interval))
    return pinned


def _check_tiling(pinned: PinnedInterval, between: Neighbours) -> None:
    if between.before is not None:
        _check_side(pinned, between.before, between.before, pinned)
    if between.after is not None:
        _check_side(pinned, between.after, pinned, between.after)


def _check_side(
    pinned: PinnedInterval, neighbour: PinnedInterval, earlier: PinnedInterval, later: PinnedInterval
) -> None:
    """Raise TidemarkError unless the later offsets begin where the earlier end, or after that if time lies between.

    Or where the archive begins: an interval may have been pinned, without offsets, before the first commit.
    """
    # Incarnations of a topic do not tile with each other, and a topic added since has nothing to tile with.
    same = {topic for topic, topic_id in neighbour.topic_ids.items() if pinned.topic_ids.get(topic) == topic_id}
    ends = {r.topic_partition: r.until_offset for r in earlier.ranges}
    begins = {r.topic_partition: r.from_offset for r in later.ranges}
    is_adjacent = earlier.interval.to_time == later.interval.from_time
    for tp in sorted(tp for tp in ends.keys() | begins.keys() if tp.topic in same):
        end, begin = ends.get(tp, 0), begins.get(tp, 0)
        hole = [OffsetRange(tp, end, max(begin, end), neighbour.topic_ids[tp.topic])]
        if begin < end or (is_adjacent and any(without(hole, before_archive(pinned.pipeline, hole)))):
            raise TidemarkError(
                f"interval {pinned.interval} does not tile with {neighbour.interval} at {tp}: one ends at {end}, the "
                f"next begins at {begin}",
                remedy="run it again; the ledger was not changed",
                pipeline=pinned.pipeline,
            )


def _add_ranges(
    ledger: Session,
    interval_id: int,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str],
    odd_timestamps: Iterable[OddTimestamps],
) -> None:
    odd = {each.topic_partition: each for each in odd_timestamps}
    for each in ranges:
        tp = each.topic_partition
        ledger.add(
            IntervalRange(
                interval_id=interval_id,
                topic=tp.topic,
                topic_partition=tp.partition,
                topic_id=topic_ids[tp.topic],
                from_offset=each.from_offset,
                until_offset=each.until_offset,
                odd_timestamps=odd[tp].count if tp in odd else 0,
                first_odd_offset=odd[tp].first_offset if tp in odd else None,
                first_odd_timestamp=odd[tp].first_timestamp if tp in odd else None,
            )
        )
    ledger.flush()


def replace_ranges(
    pinned: PinnedInterval,
    ranges: Sequence[OffsetRange],
    *,
    repinned_by: str,
    odd_timestamps: Iterable[OddTimestamps] = (),
) -> PinnedInterval | None:
    """Give the last pinned interval other ranges, and record the old ones; None when it changed meanwhile.

    It also counts as changed when landing files of its offsets were removed: its revisions are then the only copy.

    Its registered revisions stay registered until the run that follows replaces them, as after any rerun; until that
    run has succeeded, the interval counts as pinned only. Raises UsageError like `check_namesakes`.
    """
    with session() as ledger:
        lock_pinning(ledger, pinned.pipeline)
        last = _first_of(ledger, _of_pipeline(pinned.pipeline).order_by(IntervalRow.from_time.desc()))
        if last != pinned or any(_is_landing_removed(ledger, pinned.pipeline, each) for each in pinned.ranges):
            return None
        row = ledger.get_one(IntervalRow, pinned.id, with_for_update=True)
        ledger.execute(delete(IntervalRange).where(IntervalRange.interval_id == pinned.id))
        _add_ranges(ledger, pinned.id, ranges, pinned.topic_ids, odd_timestamps)
        row.state = IntervalState.PINNED
        replaced = pinned_of(ledger, row)
        check_namesakes(ledger, replaced)
        built = select(func.max(Build.id)).where(Build.interval_id == pinned.id)
        ledger.add(
            Repin(
                interval_id=pinned.id,
                repinned_by=repinned_by,
                last_build=ledger.scalar(built) or 0,
                old_ranges=[each.as_json() for each in pinned.ranges],
                new_ranges=[each.as_json() for each in replaced.ranges],
            )
        )
        return replaced


def note_last_timestamps(pinned: PinnedInterval, timestamps: Mapping[TopicPartition, int]) -> None:
    """Note the timestamps, in milliseconds, of the records before the ends of an interval's ranges."""
    ends = {each.topic_partition: each.until_offset for each in pinned.ranges}
    with session() as ledger:
        for row in ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id == pinned.id)):
            tp = TopicPartition(row.topic, row.topic_partition)
            # It may have been pinned again meanwhile.
            if row.until_offset == ends.get(tp):
                row.last_timestamp = timestamps.get(tp)


def last_timestamps(pinned: PinnedInterval) -> dict[TopicPartition, tuple[int, int]]:
    """Return offset and timestamp, in milliseconds, of the records before the ends of an interval's ranges.

    Without those that were not noted.
    """
    noted = IntervalRange.last_timestamp.is_not(None)
    with session() as ledger:
        rows = ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id == pinned.id, noted))
        return {
            TopicPartition(row.topic, row.topic_partition): (row.until_offset - 1, row.last_timestamp)
            for row in rows
            if row.last_timestamp is not None
        }


def _is_landing_removed(ledger: Session, pipeline: str, each: OffsetRange) -> bool:
    wanted = (
        select(LandingFileRow.id)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
        .where(
            of_query(pipeline, ARCHIVE),
            LandingFileRow.removed_at.is_not(None),
            MicroBatchRange.topic == each.topic_partition.topic,
            MicroBatchRange.topic_partition == each.topic_partition.partition,
            overlaps(MicroBatchRange, each),
        )
    )
    return len(each) > 0 and ledger.scalar(wanted.limit(1)) is not None
