"""What is usual for an archive table, by rows and freshness of earlier registered intervals of the same length.

Unusual values are reported and hold nothing up: a quiet night is not an error. To make them wait for a person, a suite
file declares `USUAL`, e.g. `USUAL = Usual(at_least=24, factor=3, severity="warn")`, or `USUAL = None` for no bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from expectations.suite_files import suite_file
from include.ledger.intervals.findings import Severity
from include.ledger.validation.usual import MOST, PastInterval, past_intervals
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.times import Interval

EVENT_TIMESTAMP = "tidemark_event_timestamp"
"""Column of an archive table's rows with the event time as a timestamp: it may be declared as a date or a text. Null
where a text is none."""

_LEAST_LAG = timedelta(minutes=1)
"""Least allowed gap between the newest row and the interval's end, where rows usually come until the very end."""


@dataclass(frozen=True)
class Usual:
    """How far an interval may lie outside the range of earlier ones."""

    at_least: int = 48
    """Earlier registered intervals that are needed before anything counts as usual."""
    factor: float = 2.0
    """Rows may lie between the minimum divided by it and the maximum times it; the newest row's age may reach its
    maximum times it."""
    severity: Severity | None = None
    """By default that of the setting TIDEMARK_UNUSUAL."""

    def __post_init__(self) -> None:
        severities = (*get_args(Severity), None)
        if not 1 <= self.at_least <= MOST or not 1 <= self.factor < math.inf or self.severity not in severities:
            raise ValueError(f"at_least is from 1 to {MOST}, factor at least 1, severity fail, warn or info: {self}")


@dataclass(frozen=True)
class UsualBounds:
    """Bounds of one interval of a table; none where nothing is usual yet."""

    severity: Severity = "warn"
    intervals: int = 0
    """Number of earlier registered intervals behind the bounds."""
    rows: tuple[int, int] | None = None
    newest_after: datetime | None = None
    """The newest event time must not be before it, UTC."""
    kept: int = 0
    """Least number of rows after other code took out registered ones, else 0; with fewer a person is asked, whatever
    the severity."""
    not_checked: tuple[str, ...] = ()
    """What has no bounds and why, a sentence each."""

    @property
    def expects_rows(self) -> bool:
        """Whether an interval without a row would be unusual."""
        return self.kept > 0 or (self.rows is not None and self.rows[0] > 0)


UNKNOWN_BOUNDS = UsualBounds()


def usual_of(pipeline: Pipeline, interval: Interval) -> UsualBounds:
    """Return the bounds that earlier registered intervals suggest for the archive table.

    Raises UsageError when there is no suite file of the pipeline.
    """
    usual = getattr(suite_file(pipeline), "USUAL", Usual())
    if usual is None:
        return UNKNOWN_BOUNDS
    return bounds_of(usual, pipeline.table, past_intervals(pipeline.name, pipeline.table, interval), interval)


def bounds_of(usual: Usual, table: str, past: Sequence[PastInterval], interval: Interval) -> UsualBounds:
    """Return the bounds that earlier intervals of its length suggest for an interval."""
    severity = usual.severity or settings().unusual
    if len(past) < usual.at_least:
        why = f"it takes {usual.at_least} registered earlier intervals of its length, and there are {len(past)}"
        return UsualBounds(
            severity, len(past), not_checked=(f"whether rows and freshness of {table} are usual: {why}",)
        )
    counts = [each.rows for each in past]
    rows = (math.floor(min(counts) / usual.factor), math.ceil(max(counts) * usual.factor))

    def of_rows_alone(why: str) -> UsualBounds:
        not_checked = (f"whether the freshness of {table} is usual: {why}",)
        return UsualBounds(severity, len(past), rows, not_checked=not_checked)

    lags = [each.lag for each in past if each.lag is not None]
    if len(lags) < usual.at_least:
        return of_rows_alone(
            f"it takes {usual.at_least} earlier intervals of its length with a newest row, and there are {len(lags)}"
        )
    try:
        newest_after = interval.to_time - max(max(lags) * usual.factor, _LEAST_LAG)
    except OverflowError:
        # The newest row of an earlier interval may be centuries old.
        return of_rows_alone(f"its greatest lag times the factor {usual.factor} is longer than any time")
    return UsualBounds(severity, len(past), rows, newest_after)
