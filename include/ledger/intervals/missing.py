"""Intervals that nobody has built: pinned on the way to others, or left for later and not pinned at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, or_, select

from include.ledger.database import session
from include.ledger.intervals.archived_offsets import first_committed_offsets
from include.ledger.intervals.pins import Neighbours, PinnedInterval, neighbours_of, pinned_of
from include.ledger.models import Attempt, IntervalRow


@dataclass(frozen=True)
class MissingIntervals:
    """Consecutive intervals that were never built."""

    from_time: datetime | None
    """None: from the first archived record on."""
    to_time: datetime
    offsets: int
    """Offsets that they hold."""
    pinned: int | None
    """How many they are; None when they are not pinned yet, so that their records' times are not known."""


def find_gaps(pipeline: str) -> list[Neighbours]:
    """Return where time lies between pinned intervals, and before the first, each with the intervals around it."""
    previous_end = func.lag(IntervalRow.to_time).over(order_by=IntervalRow.from_time)
    ends = select(IntervalRow.id, previous_end.label("previous_end")).where(IntervalRow.pipeline == pipeline).subquery()
    behind_gaps = (
        select(IntervalRow)
        .join(ends, ends.c.id == IntervalRow.id)
        .where(or_(ends.c.previous_end.is_(None), ends.c.previous_end < IntervalRow.from_time))
        .order_by(IntervalRow.from_time)
    )
    with session() as ledger:
        after = [pinned_of(ledger, row) for row in ledger.scalars(behind_gaps).all()]
        return [Neighbours(neighbours_of(ledger, pipeline, each.interval).before, each) for each in after]


def missing_intervals(pipeline: str) -> list[MissingIntervals]:
    """Return the intervals up to the last pinned one that were never built, in order."""
    never_begun = (
        select(IntervalRow)
        .outerjoin(Attempt, Attempt.interval_id == IntervalRow.id)
        .where(IntervalRow.pipeline == pipeline, IntervalRow.state == "pinned", Attempt.id.is_(None))
        .order_by(IntervalRow.from_time)
    )
    with session() as ledger:
        pinned = [_pinned_missing(pinned_of(ledger, row)) for row in ledger.scalars(never_begun).all()]
    unpinned = [each for gap in find_gaps(pipeline) if (each := _unpinned(pipeline, gap)).offsets]
    return sorted([*_joined(pinned), *unpinned], key=lambda each: each.to_time)


def _pinned_missing(interval: PinnedInterval) -> MissingIntervals:
    times, offsets = interval.interval, sum(map(len, interval.ranges))
    return MissingIntervals(times.from_time, times.to_time, offsets, 1)


def _joined(intervals: list[MissingIntervals]) -> list[MissingIntervals]:
    joined: list[MissingIntervals] = []
    for each in intervals:
        if joined and joined[-1].to_time == each.from_time:
            last = joined[-1]
            joined[-1] = replace(
                last, to_time=each.to_time, offsets=last.offsets + each.offsets, pinned=(last.pinned or 0) + 1
            )
        else:
            joined.append(each)
    return joined


def _unpinned(pipeline: str, gap: Neighbours) -> MissingIntervals:
    assert gap.after is not None
    if gap.before is None:
        begins = first_committed_offsets(pipeline)
    else:
        begins = {
            r.topic_partition: r.until_offset
            for r in gap.before.ranges
            if gap.after.topic_ids.get(r.topic_partition.topic) == r.topic_id
        }
    offsets = sum(max(0, r.from_offset - begins.get(r.topic_partition, r.from_offset)) for r in gap.after.ranges)
    begin = gap.before.interval.to_time if gap.before else None
    return MissingIntervals(begin, gap.after.interval.from_time, offsets, None)
