"""Intervals that their last run has not registered though something was built of them, as doctor reports them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from include.errors import ReconciliationFailed
from include.ledger.intervals.missing import missing_intervals
from include.ledger.intervals.states import IntervalState
from include.ledger.pages.calendar import KnownInterval, unregistered_intervals
from include.monitor.history.remedies import Advice, run_command
from include.monitor.history.states import CellState, advice_for, interval_state
from include.pipelines.spec import Pipeline
from include.times import Interval


@dataclass(frozen=True)
class Unregistered:
    """An interval that its last run has not registered."""

    interval: Interval
    is_registered: bool
    """Whether what an earlier run registered stays."""
    advice: Advice

    def __str__(self) -> str:
        if self.is_registered:
            return f"{self.interval} is registered, and its last run failed: {self.advice.meaning}"
        return f"{self.interval} is not registered: {self.advice.meaning}"


def find_unregistered(pipeline: Pipeline) -> Iterator[Unregistered]:
    """Yield the intervals whose last run has not registered them, in order, with what that means and what to do.

    Those with which an attempt is under way are left out, and those that were never built: they are missing.
    """
    missing = [(each.from_time, each.to_time) for each in missing_intervals(pipeline.name) if each.from_time]
    for known in unregistered_intervals(pipeline.name):
        time = Interval(known.from_time, known.to_time)
        is_missing = any(begin <= time.from_time < end for begin, end in missing)
        if not is_missing and (advice := _advice(pipeline.name, time, known)):
            yield Unregistered(time, known.state == IntervalState.REGISTERED, advice)


def _advice(pipeline: str, time: Interval, known: KnownInterval) -> Advice | None:
    state = interval_state(known, time, None)
    if state is CellState.FAILED:
        advice = advice_for(pipeline, time, state, known)
        if known.exit_code == ReconciliationFailed.exit_code:
            # The other one is doctor's own.
            return replace(advice, command=run_command(pipeline, time))
        return advice
    return advice_for(pipeline, time, state, known) if state is CellState.REPINNED else None
