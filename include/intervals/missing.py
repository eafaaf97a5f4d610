"""Which missing intervals are built next: oldest first, and pinned ones before time that was never pinned."""

from __future__ import annotations

from collections.abc import Iterator

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
        if gap.after is not None and gap.after.interval.from_time in ends:
            yield from _intervals_of(pipeline, gap)


def _intervals_of(pipeline: Pipeline, gap: Neighbours) -> Iterator[Interval]:
    """Yield the intervals of a gap that hold its offsets, in order; none when there is nothing to pin.

    Offsets without a time, because retention removed their records or none is visible, are in the gap's first
    interval: its run states that they are lost, or proves that they are gaps. Until it is pinned, only intervals after
    the first retained record's are exact.
    """
    assert gap.after is not None
    log, schedule, end = read_log(pipeline), pipeline.schedule, gap.after.interval.from_time
    spans = log.spans_between(gap)
    if all(begin >= until for begin, until in spans.values()):
        return
    times, last = log.first_times(spans), schedule.before(end)
    # The last interval of the gap has its late records.
    begin = min(last, schedule.floor(min(times.values()))) if times else last
    if gap.before is None:
        yield from schedule.between(begin, end)
        return
    opening, removed = gap.before.interval.to_time, {each.topic_partition for each in log.removed(spans)}
    if times and not removed:
        yield from schedule.between(max(begin, opening), end)
        return
    first = next(schedule.between(opening, end))
    yield first
    if removed and removed <= times.keys():
        retained = schedule.floor(max(times[tp] for tp in removed)) + schedule.every
        yield from schedule.between(max(first.to_time, retained), end)


def rest_before(pipeline: Pipeline, interval: Interval) -> Interval | None:
    """Return the interval of another length that ends where one begins, if it is pinned and was never built.

    It is the rest of a time that an earlier schedule has begun. After a change to a longer schedule, Airflow's first
    run is for the interval after that time, so that no run of the schedule is for the rest.
    """
    length = interval.to_time - interval.from_time
    for each in missing_intervals(pipeline.name):
        if each.to_time == interval.from_time and (width := each.width) and width != length:
            return Interval(each.to_time - width, each.to_time)
    return None
