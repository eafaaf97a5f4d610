"""Which registered intervals, and which of their revisions, hold the rows of landing files that were removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.errors import TidemarkError
from include.ledger.archive.positions import overlaps
from include.ledger.database import session
from include.ledger.intervals.revisions import archived_records, as_built
from include.ledger.intervals.states import IntervalState, RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import IntervalRange, IntervalRow, Revision
from include.offsets import OffsetRange, TopicPartition, intersection, merged


@dataclass(frozen=True)
class Holding:
    """A registered interval, the offsets in question that belong to it, and its revisions of the archive table."""

    interval_id: int
    from_time: datetime
    to_time: datetime
    ranges: tuple[OffsetRange, ...]
    revisions: tuple[BuiltRevision, ...]
    archived: int | None
    """Records with rows that the interval's registered build delivers; None when no build of it was published."""


def holdings(pipeline: str, table: str, ranges: Sequence[OffsetRange]) -> list[Holding]:
    """Return the registered intervals that hold the ranges, with their revisions of the archive table.

    Raises TidemarkError when some of the offsets belong to no registered interval: their rows are nowhere.
    """
    with session() as ledger:
        return holding(ledger, pipeline, table, ranges)


def holding(ledger: Session, pipeline: str, table: str, ranges: Sequence[OffsetRange]) -> list[Holding]:
    """Return `holdings` within the caller's transaction."""
    by_interval: dict[int, list[OffsetRange]] = defaultdict(list)
    for each in ranges:
        around = registered_around(ledger, pipeline, each)
        parts = [(row.interval_id, intersection(held, each)) for row, held in around]
        for key, part in parts:
            by_interval[key] += [part] if part else []
        if merged(part for _, part in parts if part) != [each]:
            raise TidemarkError(
                f"the landing files of {each} were removed, but it does not lie in registered intervals",
                remedy="./tidemark doctor; then run the intervals that hold these offsets",
                pipeline=pipeline,
            )
    held = [_holding(ledger, table, key, parts) for key, parts in by_interval.items()]
    return sorted(held, key=lambda each: each.from_time)


def registered_around(ledger: Session, pipeline: str, each: OffsetRange) -> list[tuple[IntervalRange, OffsetRange]]:
    """Return the ranges of registered intervals that have offsets in common with one, as rows and as ranges."""
    tp = each.topic_partition
    rows = ledger.scalars(
        select(IntervalRange)
        .join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
        .where(
            IntervalRow.pipeline == pipeline,
            IntervalRow.state == IntervalState.REGISTERED,
            IntervalRange.topic == tp.topic,
            IntervalRange.topic_partition == tp.partition,
            overlaps(IntervalRange, each),
        )
    )
    return [(row, OffsetRange(tp, row.from_offset, row.until_offset)) for row in rows]


def _holding(ledger: Session, table: str, interval_id: int, ranges: Sequence[OffsetRange]) -> Holding:
    interval = ledger.get_one(IntervalRow, interval_id)
    rows = ledger.scalars(
        select(Revision)
        .where(
            Revision.interval_id == interval_id,
            Revision.table_name == table,
            Revision.state == RevisionState.REGISTERED,
        )
        .order_by(Revision.table_partition)
    )
    return Holding(
        interval_id,
        interval.from_time,
        interval.to_time,
        tuple(merged(ranges)),
        tuple(as_built(row) for row in rows),
        archived_records(ledger, interval_id),
    )


def with_dates(
    ledger: Session, table: str, first: date, last: date, *, undated: bool = False
) -> dict[int, list[BuiltRevision]]:
    """Return, by interval, the registered revisions of an archive table whose partition's date is in `[first, last]`.

    Intervals are in the order of their numbers. `undated`: all revisions; rows without an event
    time lie in the partition of their record's date.
    """
    dates = (
        Revision.table_partition >= f"date={first}",
        Revision.table_partition < f"date={last + timedelta(days=1)}",
    )
    by_interval: dict[int, list[BuiltRevision]] = defaultdict(list)
    rows = ledger.scalars(
        select(Revision)
        .where(
            Revision.table_name == table,
            Revision.state == RevisionState.REGISTERED,
            *(() if undated else dates),
        )
        .order_by(Revision.interval_id)
    )
    for row in rows:
        by_interval[row.interval_id].append(as_built(row))
    return dict(by_interval)


def ranges_of_intervals(intervals: Iterable[int]) -> list[OffsetRange]:
    """Return the pinned ranges of the intervals, neighbours merged."""
    with session() as ledger:
        return merged(each for parts in pinned_ranges(ledger, intervals).values() for each in parts)


def pinned_ranges(ledger: Session, intervals: Iterable[int]) -> dict[int, list[OffsetRange]]:
    """Return the pinned ranges of each of the intervals, each with the id of its topic."""
    parts: dict[int, list[OffsetRange]] = {each: [] for each in intervals}
    for r in ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id.in_(parts))):
        tp = TopicPartition(r.topic, r.topic_partition)
        parts[r.interval_id].append(OffsetRange(tp, r.from_offset, r.until_offset, r.topic_id))
    return {interval: sorted(each for each in ranges if len(each)) for interval, ranges in parts.items()}
