"""The states of intervals on pages, and what to do about those that need attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from include.ledger.intervals.missing import MissingIntervals
from include.ledger.intervals.states import IntervalState
from include.ledger.pages.calendar import KnownInterval
from include.monitor.history import remedies
from include.monitor.history.remedies import Advice
from include.times import Interval


class CellState(StrEnum):
    """What became of an interval in a table; the first ones need attention."""

    FAILED = "failed"
    MISSING = "missing"
    REPINNED = "repinned"
    DUE = "due"
    PINNED = "pinned"
    BUILT = "built"
    RECONCILED = "reconciled"
    REGISTERED = "registered"
    UNDECLARED = "undeclared"
    IDLE = "idle"
    NONE = "none"


MEANINGS: Mapping[CellState, str] = {
    CellState.FAILED: "its last attempt ended with an error, or without a verdict",
    CellState.MISSING: "pinned or before a pinned one, and never built",
    CellState.REPINNED: "pinned again, and not run since: its tables have what was registered before",
    CellState.DUE: "has passed, and nothing has pinned it yet",
    CellState.PINNED: "its offset ranges are in the ledger, an attempt has begun",
    CellState.BUILT: "its files are written",
    CellState.RECONCILED: "archive, Kafka and speed views agree; it waits for its checkpoint",
    CellState.REGISTERED: "validated, and visible in the catalog",
    CellState.UNDECLARED: "registered, and built by code that did not declare this table",
    CellState.IDLE: "between pinned intervals, and no record lies in it",
    CellState.NONE: "before the first pinned interval",
}

RED = (CellState.FAILED, CellState.MISSING, CellState.REPINNED, CellState.DUE)


def interval_state(
    known: KnownInterval | None,
    time: Interval,
    pinned: tuple[datetime, datetime] | None,
    missing: Sequence[MissingIntervals] = (),
) -> CellState:
    """Return what became of an interval; `pinned` is the time from the first pinned interval to the last one's end.

    When none was ever pinned, both are where the first one would begin. `missing` is the ledger's account of the
    pipeline's missing intervals.
    """
    if known is None:
        if pinned is None or time.from_time < pinned[0]:
            # How far back the records before the first pinned interval go is not known.
            is_next = any(each.from_time is None and each.to_time <= time.to_time for each in missing)
            return CellState.MISSING if is_next else CellState.NONE
        if time.from_time >= pinned[1]:
            return CellState.DUE
        begun = (each for each in missing if each.from_time is None or each.from_time <= time.from_time)
        return CellState.MISSING if any(time.from_time < each.to_time for each in begun) else CellState.IDLE
    if known.attempt is None and known.state == IntervalState.PINNED:
        return CellState.MISSING
    if known.is_under_way:
        return _under_way(known)
    if known.exit_code or known.has_no_verdict or known.state == IntervalState.FAILED:
        return CellState.FAILED
    if known.is_published and known.state == IntervalState.PINNED:
        return CellState.REPINNED
    return CellState.REGISTERED if known.state == IntervalState.REGISTERED else _under_way(known)


def _under_way(known: KnownInterval) -> CellState:
    if known.state == IntervalState.REGISTERED:
        return CellState.REGISTERED
    if not known.is_built or known.is_published:
        return CellState.PINNED
    if known.unexplained:
        return CellState.FAILED
    return CellState.BUILT if known.unexplained is None else CellState.RECONCILED


def advice_for(pipeline: str, time: Interval, state: CellState, known: KnownInterval | None) -> Advice:
    """Return what a state that needs attention means, and what to do about it."""
    if state is CellState.FAILED:
        if known is not None and known.question is not None:
            return remedies.of_waiting(pipeline, time, known.question)
        code = known.exit_code if known else None
        if known is not None and known.has_no_verdict and code is None:
            return remedies.of_silence(pipeline, time)
        return remedies.of_failure(pipeline, time, code or (3 if known and known.unexplained else 1))
    if state is CellState.REPINNED:
        return remedies.of_repinned(pipeline, time)
    if state is CellState.DUE:
        return remedies.of_due(pipeline, time)
    return (remedies.of_missing if known else remedies.of_unpinned)(pipeline, time)
