"""Counts of a run that follows an event stream, its rate, and how far it is behind."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass
class Followed:
    """Counts of a run's events; `received` is the sum of the six counts after it."""

    pipeline: str
    topic: str
    received: int = 0
    written: int = 0
    duplicates: int = 0
    canaries: int = 0
    other_types: int = 0
    without_data: int = 0
    refused: int = 0
    connections: int = 0
    last_event_id: str = ""
    missing_seconds: float = 0.0
    """Length of the time whose events the service no longer had."""
    events_per_second: float = 0.0
    """Rate over the whole run; in a line of progress, since the previous line."""
    behind_seconds: float | None = None
    """Age of the newest event by its own time; None without an event that has one."""

    def line(self) -> str:
        """Return the counts as a line of progress."""
        behind = "" if self.behind_seconds is None else f", {self.behind_seconds:,.1f} s behind"
        return (
            f"{self.pipeline}: {self.received} events received, {self.events_per_second:,.1f}/s{behind}: "
            f"{self.written} written to {self.topic}, "
            f"{self.duplicates} duplicates, {self.canaries} canaries, {self.other_types} of another type, "
            f"{self.without_data} without data, {self.refused} refused by Kafka; {self.connections} connections"
        )


class RateMeter:
    """Measures the rate of a run's events, and how old the newest one is."""

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()
        self._received = 0
        self._newest: datetime | None = None

    def note(self, moment: datetime | None) -> None:
        """Note the time of an event that was received."""
        if moment is not None:
            self._newest = max(moment, self._newest or moment)

    def measure(self, counts: Followed, *, whole: bool) -> None:
        """Write rate and age into the counts: the rate of the whole run, or since the previous call."""
        now = time.monotonic()
        since, before = (self._begun, 0) if whole else (self._told, self._received)
        counts.events_per_second = round((counts.received - before) / max(now - since, 0.001), 1)
        if self._newest is not None:
            counts.behind_seconds = round(max((datetime.now(UTC) - self._newest).total_seconds(), 0.0), 1)
        self._told, self._received = now, counts.received
