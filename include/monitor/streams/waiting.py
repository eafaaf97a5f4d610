"""Since when records wait to be committed: by their timestamps, and by the topic's ends that were seen.

A record's timestamp may be its event's, hours before it was sent. But a record that lies at or after the end that a
topic partition had at some moment was appended after that moment. The later of the two is the better answer, and the
wait computed from it grows without another look at the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from include.offsets import TopicPartition

_KEPT = 600
"""How many ends are remembered per topic partition."""


@dataclass
class SeenEnds:
    """The ends that topic partitions had, each with the last moment at which it was still the end."""

    _ends: dict[TopicPartition, deque[tuple[datetime, int]]] = field(default_factory=dict)

    def note(self, moment: datetime, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends at a moment; a topic partition whose end went back (the topic was recreated) starts over."""
        for tp, end in ends.items():
            seen = self._ends.setdefault(tp, deque(maxlen=_KEPT))
            if seen and seen[-1][1] > end:
                seen.clear()
            if seen and seen[-1][1] == end:
                seen.pop()
            seen.append((moment, end))

    def appended_after(self, tp: TopicPartition, offset: int) -> datetime | None:
        """Return the last moment at which the topic partition ended at or before the offset; None when unknown."""
        return next((moment for moment, end in reversed(self._ends.get(tp, ())) if end <= offset), None)


def waiting_since(
    firsts: Mapping[TopicPartition, int], timestamps: Mapping[TopicPartition, datetime], seen: SeenEnds, now: datetime
) -> datetime | None:
    """Return since when the longest waiting of the first uncommitted records waits; None when nothing is known."""
    since = []
    for tp, offset in firsts.items():
        known = [each for each in (timestamps.get(tp), seen.appended_after(tp, offset)) if each is not None]
        if known:
            # A producer's clock may be ahead of ours.
            since.append(min(max(known), now))
    return min(since, default=None)
