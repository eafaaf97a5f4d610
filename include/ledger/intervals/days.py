"""Days of a pipeline: what its intervals of one day registered, summed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.intervals.states import IntervalState, RevisionState
from include.ledger.models import IntervalRange, IntervalRow, Revision
from include.times import Interval


@dataclass(frozen=True)
class TableTotals:
    """What is registered of one table."""

    partitions: int
    rows: int


@dataclass(frozen=True)
class DayTotals:
    """A day's registered intervals, their records by fate, and what they registered by table."""

    intervals: tuple[datetime, ...]
    """Starts of the registered intervals, in order."""
    records: Mapping[str, int]
    """in_ranges, archived, empty, quarantined, gaps, erased."""
    tables: Mapping[str, TableTotals]


def day_totals(pipeline: str, from_time: datetime, to_time: datetime) -> DayTotals:
    """Return the totals of the pipeline's registered intervals that begin in `[from_time, to_time)`."""
    registered = (
        IntervalRow.pipeline == pipeline,
        IntervalRow.from_time >= from_time,
        IntervalRow.from_time < to_time,
        IntervalRow.state == IntervalState.REGISTERED,
    )
    fates = [getattr(IntervalRange, name) for name in ("archived", "empty", "quarantined", "gaps", "erased")]
    totals = [func.coalesce(func.sum(column), 0) for column in fates]
    with session() as ledger:
        starts = ledger.scalars(select(IntervalRow.from_time).where(*registered).order_by(IntervalRow.from_time)).all()
        offsets = func.coalesce(func.sum(IntervalRange.until_offset - IntervalRange.from_offset), 0)
        counts = ledger.execute(
            select(offsets, *totals).join(IntervalRow, IntervalRow.id == IntervalRange.interval_id).where(*registered)
        ).one()
        tables = ledger.execute(
            select(Revision.table_name, func.count(), func.sum(Revision.rows))
            .join(IntervalRow, IntervalRow.id == Revision.interval_id)
            .where(*registered, Revision.state == RevisionState.REGISTERED)
            .group_by(Revision.table_name)
            .order_by(Revision.table_name)
        ).all()
    names = ("in_ranges", *(column.key for column in fates))
    return DayTotals(
        tuple(starts),
        {name: int(count) for name, count in zip(names, counts, strict=True)},
        {table: TableTotals(partitions, int(rows)) for table, partitions, rows in tables},
    )


def pinned_within(
    pipeline: str, from_time: datetime, to_time: datetime
) -> tuple[datetime | None, dict[Interval, bool]]:
    """Return the start of the pipeline's first interval, and those that overlap a time: whether each is registered.

    In order. The first is None when the pipeline has no interval.
    """
    wanted = (
        select(IntervalRow.from_time, IntervalRow.to_time, IntervalRow.state)
        .where(
            IntervalRow.pipeline == pipeline,
            # No schedule is longer than a day; an index finds them.
            IntervalRow.from_time > from_time - timedelta(days=1),
            IntervalRow.to_time > from_time,
            IntervalRow.from_time < to_time,
        )
        .order_by(IntervalRow.from_time)
    )
    with session() as ledger:
        first = ledger.scalar(select(func.min(IntervalRow.from_time)).where(IntervalRow.pipeline == pipeline))
        rows = ledger.execute(wanted).tuples()
        return first, {Interval(begin, end): state == IntervalState.REGISTERED for begin, end, state in rows}
