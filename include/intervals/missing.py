"""Which missing intervals are built next: oldest first, and pinned ones before time that was never pinned."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from include.intervals.boundaries import read_log
from include.ledger.intervals.missing import find_gaps, missing_intervals
from include.ledger.intervals.pins import Neighbours
from include.pipelines.spec import Pipeline
from include.times import Interval


def missing_in_order(pipeline: Pipeline) -> Iterator[Interval]:
    """Yield the intervals that were never built, in the order in which they are to be built.

    In a gap between pinned intervals, and in the time before the first, they begin with the first record: before it
    may lie years without any. Raises what `read_log` raises, once it comes to such a gap.
    """
    missing = missing_intervals(pipeline.name)
    for each in missing:
        if each.pinned is not None and each.from_time is not None:
            width = each.width or pipeline.schedule.every
            yield from (
                Interval(each.from_time + n * width, each.from_time + (n + 1) * width) for n in range(each.pinned)
            )
    ends = {each.to_time for each in missing if each.pinned is None}
    for gap in find_gaps(pipeline.name) if ends else ():
        if gap.after is not None and (end := gap.after.interval.from_time) in ends:
            begin = _first_boundary(pipeline, gap)
            if begin is not None:
                yield from pipeline.schedule.between(begin, end)


def _first_boundary(pipeline: Pipeline, gap: Neighbours) -> datetime | None:
    """Return where the first interval of a gap with a record begins, not before the gap; None without any record."""
    log = read_log(pipeline)
    first = log.first_time(log.spans_between(gap))
    if first is None:
        return None
    assert gap.after is not None
    begin = min(pipeline.schedule.floor(first), gap.after.interval.from_time - pipeline.schedule.every)
    return max(begin, gap.before.interval.to_time) if gap.before else begin
