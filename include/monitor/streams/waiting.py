"""Since when records wait to be committed: by their timestamps, and by the topic's ends that were seen.

A record's timestamp may be its event's, hours before it was sent. But a record that lies at or after the end that a
topic partition had at some moment was appended after that moment. The later of the two is the better answer, and the
wait computed from it grows without another look at the broker. A producer's clock that is ahead gives a timestamp still
to come, but a record that lies before an end was appended before that end was seen.

Records behind an open transaction do not wait for the stream, which must not read them. They are told apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from include.monitor.text import duration, quantity
from include.offsets import TopicPartition

_KEPT = 600
"""With more ends of a topic partition than these, old ones are thinned out; of a year, fewer stay."""

_EXACT = 40
"""Old ends lie about this part of their age apart, so a wait is known to this part of itself."""

_TOLD_AFTER = timedelta(minutes=1)
"""How long a transaction may be open: producers' usual ones are shorter."""


@dataclass(frozen=True)
class _SeenEnd:
    """An end of a topic partition, with the first and the last moment at which it was seen."""

    end: int
    first_at: datetime
    last_at: datetime


@dataclass
class SeenEnds:
    """The ends that topic partitions had."""

    _ends: dict[TopicPartition, list[_SeenEnd]] = field(default_factory=dict)
    """Lowest first, which is oldest first."""

    def note(self, moment: datetime, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends at a moment; a topic partition whose end went back (the topic was recreated) starts over."""
        for tp, end in ends.items():
            seen = self._ends.setdefault(tp, [])
            if seen and seen[-1].end > end:
                seen.clear()
            if seen and seen[-1].end == end:
                seen[-1] = replace(seen[-1], last_at=moment)
            else:
                seen.append(_SeenEnd(end, moment, moment))
            if len(seen) > _KEPT:
                self._ends[tp] = _thinned(seen, moment)

    def appended_after(self, tp: TopicPartition, offset: int) -> datetime | None:
        """Return the last moment at which the topic partition ended at or before the offset; None when unknown."""
        seen, above = self._ends.get(tp, []), self._above(tp, offset)
        return seen[above - 1].last_at if above else None

    def appended_before(self, tp: TopicPartition, offset: int) -> datetime | None:
        """Return the first moment at which the topic partition ended beyond the offset; None when unknown."""
        seen, above = self._ends.get(tp, []), self._above(tp, offset)
        return seen[above].first_at if above < len(seen) else None

    def _above(self, tp: TopicPartition, offset: int) -> int:
        """Return the index of the first end beyond the offset."""
        return bisect_right(self._ends.get(tp, []), offset, key=lambda each: each.end)


def _thinned(seen: Sequence[_SeenEnd], now: datetime) -> list[_SeenEnd]:
    """Return the first end, and those after it that do not lie too close together for their age."""
    kept = [seen[0]]
    for each in seen[1:]:
        if (each.last_at - kept[-1].last_at) * _EXACT >= now - each.last_at:
            kept.append(each)
    return kept


def waiting_since(
    firsts: Mapping[TopicPartition, int], timestamps: Mapping[TopicPartition, datetime], seen: SeenEnds, now: datetime
) -> datetime | None:
    """Return since when the longest waiting of the first uncommitted records waits; None when nothing is known."""
    since = []
    for tp, offset in firsts.items():
        known = [each for each in (timestamps.get(tp), seen.appended_after(tp, offset)) if each is not None]
        if known:
            # Not a timestamp still to come: cut to now at every look, it would hide any wait.
            since.append(min(max(known), seen.appended_before(tp, offset) or now))
    return min(since, default=None)


@dataclass(frozen=True)
class HeldBack:
    """A topic partition whose end for readers of committed records does not move, though records lie behind it."""

    topic_partition: TopicPartition
    stable: int
    """The end for readers of committed records: the first offset of the open transaction."""
    end: int
    """The end of the log."""
    since: datetime
    """When it was first seen so."""


def seen_held_back(
    before: Mapping[TopicPartition, HeldBack],
    stable: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    now: datetime,
) -> dict[TopicPartition, HeldBack]:
    """Return where readers of committed records are held back, given where they were at the look before."""
    found = {}
    for tp, end in ends.items():
        if stable[tp] < end:
            known = before.get(tp)
            since = known.since if known and known.stable == stable[tp] else now
            found[tp] = HeldBack(tp, stable[tp], end, since)
    return found


def told_at(held: Collection[HeldBack], now: datetime) -> tuple[str, timedelta]:
    """Return the words for what has been held back for more than a minute, and for how long; empty for nothing."""
    long = sorted((each for each in held if now - each.since > _TOLD_AFTER), key=lambda each: each.since)
    if not long:
        return "", timedelta()
    first, others = long[0], len(long) - 1
    lie = quantity(first.end - first.stable, "offset lies", "offsets lie")
    more = (
        f", and {quantity(others, 'other topic partition is', 'other topic partitions are')} held back"
        if others
        else ""
    )
    held_for = now - first.since
    return (
        f"held back for {duration(held_for)}: a transaction is open at offset {first.stable} of "
        f"{first.topic_partition}, {lie} behind it{more}",
        held_for,
    )
