"""Intervals that were never built: pinned and no more, begun in vain, or not pinned at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from psycopg2.extensions import cursor

from include.ledger.archive.committed import (
    ARCHIVE,
    committed_offsets,
    first_commit,
    first_offsets,
    first_offsets_of_ranges,
)
from include.ledger.connection import reading
from include.ledger.intervals.pinned import Neighbours, PinnedInterval, intervals_where
from include.ledger.intervals.states import QUIET, IntervalState
from include.times import Interval


@dataclass(frozen=True)
class MissingIntervals:
    """Consecutive intervals of one length that were never built."""

    from_time: datetime | None
    """None stands for the first archived record."""
    to_time: datetime
    offsets: int
    """Offsets that they hold."""
    pinned: int | None
    """How many they are; None when they are not pinned yet, so that their records' times are not known."""

    @property
    def width(self) -> timedelta | None:
        """How long each of them is; None when they are not pinned yet."""
        if self.pinned is None or self.from_time is None:
            return None
        return (self.to_time - self.from_time) / self.pinned


# Pinning begins an attempt, and this may fail before it has built anything, or end with its host. The latest one tells,
# as on the page of intervals: once it has ended, or its job has, without a build that was judged. What was registered
# and pinned again has tables.
_NEVER_BUILT = """
    i.state = 'pinned' AND NOT EXISTS (
        SELECT FROM attempts a
        WHERE a.id = (SELECT max(l.id) FROM attempts l WHERE l.interval_id = i.id AND l.run_by <> 'rebuild') AND (
            a.ended_at IS NULL AND a.exit_code IS NULL AND a.id <> ALL(%(lost)s::bigint[])
            OR EXISTS (SELECT FROM builds b WHERE b.attempt_id = a.id AND b.passed IS NOT NULL)
        )
    ) AND NOT EXISTS (SELECT FROM builds b WHERE b.interval_id = i.id AND b.published_at IS NOT NULL)
"""

_LONG_OPEN = """
    SELECT EXISTS (
        SELECT FROM intervals i JOIN attempts a ON a.interval_id = i.id
        WHERE i.pipeline = %s AND i.state = 'pinned' AND a.ended_at IS NULL AND a.exit_code IS NULL
            AND a.started_at < now() - %s
    )
"""

_NOTHING_PINNED = "SELECT clock_timestamp() WHERE NOT EXISTS (SELECT FROM intervals WHERE pipeline = %s)"

_AROUND_GAPS = """
    SELECT before.id, i.id
    FROM intervals i LEFT JOIN LATERAL (
        SELECT b.id, b.to_time FROM intervals b WHERE b.pipeline = i.pipeline AND b.from_time < i.from_time
        ORDER BY b.from_time DESC LIMIT 1
    ) before ON TRUE
    WHERE i.pipeline = %s AND NOT i.adjoins AND (before.id IS NULL OR before.to_time < i.from_time)
    ORDER BY i.from_time
"""


_UNPINNED = """
    SELECT from_time, to_time, sum(until_offset - from_offset)::bigint
    FROM waiting_spans WHERE pipeline = %s AND kind = 'missing' GROUP BY from_time, to_time
"""
"""Between pinned intervals."""


def unpinned_spans(pipeline: str) -> list[Interval]:
    """Return the times between pinned intervals that hold offsets."""
    with reading() as ledger:
        ledger.execute(_UNPINNED, [pipeline])
        return [Interval(begin, end) for begin, end, _ in ledger.fetchall()]


def find_gaps(pipeline: str) -> list[Neighbours]:
    """Return the gaps between pinned intervals, and before the first, each with the intervals around it."""
    with reading() as ledger:
        return _gaps(ledger, pipeline)


def _gaps(ledger: cursor, pipeline: str) -> list[Neighbours]:
    ledger.execute(_AROUND_GAPS, [pipeline])
    around = ledger.fetchall()
    ids = [each for pair in around for each in pair if each is not None]
    by_id = {each.id: each for each in intervals_where(ledger, "i.id = ANY(%(ids)s)", pipeline=pipeline, ids=ids)}
    return [Neighbours(by_id.get(before), by_id[after]) for before, after in around]


@dataclass(frozen=True)
class NeverBegun:
    """A pipeline whose archive has records, and of which no interval was ever pinned."""

    since: datetime
    """When its first micro-batch was committed."""
    read_at: datetime
    """By the ledger's clock, too."""
    offsets: int
    """Offsets that are archived."""


def never_begun(pipeline: str) -> NeverBegun | None:
    """Return since when a pipeline has an archive and no interval; None when it has both, or neither."""
    with reading() as ledger:
        ledger.execute(_NOTHING_PINNED, [pipeline])
        row = ledger.fetchone()
        since = first_commit(pipeline) if row else None
        if row is None or since is None:
            return None
        firsts = {tp: offset for (tp, _), offset in first_offsets(ledger, pipeline).items()}
        ends = committed_offsets(pipeline).get(ARCHIVE, {})
        return NeverBegun(since, row[0], sum(end - firsts.get(tp, end) for tp, end in ends.items()))


def missing_intervals(pipeline: str) -> list[MissingIntervals]:
    """Return the intervals up to the last pinned one that were never built, and that nobody builds now, in order."""
    with reading() as ledger:
        never_built = intervals_where(ledger, _NEVER_BUILT, pipeline=pipeline, lost=_lost(ledger, pipeline))
        pinned = [_pinned_missing(each) for each in never_built]
        ledger.execute(_UNPINNED, [pipeline])
        unpinned = [MissingIntervals(begin, end, offsets, None) for begin, end, offsets in ledger.fetchall()]
        unpinned += _before_first(ledger, pipeline)
    return sorted([*_joined(pinned), *unpinned], key=lambda each: each.to_time)


def _lost(ledger: cursor, pipeline: str) -> list[int]:
    """Return the attempts of pinned intervals that ended without a verdict."""
    ledger.execute(_LONG_OPEN, [pipeline, QUIET])
    row = ledger.fetchone()
    if row is None or not row[0]:
        return []
    # Imported for this alone: SQLAlchemy's import takes longer than all queries of a command that reads.
    from include.ledger.inventory import lost_attempts
    from include.ledger.models import IntervalRow

    return list(lost_attempts(IntervalRow.pipeline == pipeline, IntervalRow.state == IntervalState.PINNED))


def _pinned_missing(interval: PinnedInterval) -> MissingIntervals:
    times, offsets = interval.interval, sum(map(len, interval.ranges))
    return MissingIntervals(times.from_time, times.to_time, offsets, 1)


def _joined(intervals: list[MissingIntervals]) -> list[MissingIntervals]:
    joined: list[MissingIntervals] = []
    for each in intervals:
        # Intervals that were pinned under another schedule have another length.
        if joined and joined[-1].to_time == each.from_time and joined[-1].width == each.width:
            last = joined[-1]
            joined[-1] = replace(
                last, to_time=each.to_time, offsets=last.offsets + each.offsets, pinned=(last.pinned or 0) + 1
            )
        else:
            joined.append(each)
    return joined


def _before_first(ledger: cursor, pipeline: str) -> Iterator[MissingIntervals]:
    """Yield the archived offsets before the first pinned interval."""
    is_first = "i.from_time = (SELECT min(from_time) FROM intervals WHERE pipeline = %(pipeline)s)"
    for first in intervals_where(ledger, is_first, pipeline=pipeline):
        begins, offsets = first_offsets_of_ranges(ledger, pipeline, first.id), 0
        for each in first.ranges:
            begin = begins.get((each.topic_partition, each.topic_id), each.from_offset)
            offsets += max(0, each.from_offset - begin)
        if offsets:
            yield MissingIntervals(None, first.interval.from_time, offsets, None)
