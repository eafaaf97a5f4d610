"""Whether a stream makes progress: a driver whose queries hang renews its lease like one that works."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from include.monitor.lag import STALLED_AFTER, Lag

_MOST_DOUBLED = 6


def patience_after(stalls: int) -> timedelta:
    """Return `STALLED_AFTER`, doubled for each driver in a row that was ended as stalled, up to eleven hours.

    What a driver has to do before its first commit may need longer than that, and would never end.
    """
    return STALLED_AFTER * 2 ** min(stalls, _MOST_DOUBLED)


@dataclass
class Progress:
    """What each query of a stream had committed at the previous look."""

    after: timedelta = STALLED_AFTER
    """How long each query may take until its first commit that is seen; then it is at most `STALLED_AFTER`."""
    _committed: dict[str, int] = field(default_factory=dict)
    _moved: set[str] = field(default_factory=set)
    _since: dict[str, float] = field(default_factory=dict)
    """When the query last moved, or last had no input waiting; seconds of a monotonic clock."""

    def stalled(self, lags: Iterable[Lag], now: float) -> str | None:
        """Return the first query that has had input waiting, and has committed nothing, for too long."""
        committed: dict[str, int] = defaultdict(int)
        waiting: dict[str, int] = defaultdict(int)
        for each in lags:
            committed[each.query] += each.committed
            waiting[each.query] += each.lag
        for query, at in committed.items():
            if self._committed.get(query, at) != at:
                self._moved.add(query)
            if not waiting[query] or self._committed.get(query) != at:
                self._since[query] = now
            self._committed[query] = at
        return next((query for query in committed if now - self._since[query] > self._patience(query)), None)

    def _patience(self, query: str) -> float:
        return (min(self.after, STALLED_AFTER) if query in self._moved else self.after).total_seconds()
