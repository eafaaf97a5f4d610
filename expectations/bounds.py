"""Usual bounds as expectations."""

from __future__ import annotations

from datetime import UTC, datetime

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.metadata_types import FailureSeverity

from expectations.usual import EVENT_TIMESTAMP, UsualBounds

WORDS = "tidemark_words"
"""Key of an expectation's `meta` with its sentence."""

COLUMN = "tidemark_column"
"""Key of an expectation's `meta` with the column that it is told of, where it reads another one."""

_SEVERITIES = {"fail": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING, "info": FailureSeverity.INFO}


def expectations_of_bounds(bounds: UsualBounds, rows: int) -> list[Expectation]:
    """Return the expectations of a table with `rows` rows; freshness is expected only if there are rows."""
    severity = _SEVERITIES[bounds.severity]
    found: list[Expectation] = []
    if bounds.kept:
        words = (
            f"the table keeps {bounds.kept} rows, half of those that are registered; this code takes out the others "
            "(with --source archive the interval has them as they landed)"
        )
        found.append(
            gxe.ExpectTableRowCountToBeBetween(
                min_value=bounds.kept, severity=FailureSeverity.WARNING, meta={WORDS: words}
            )
        )
    if bounds.rows is not None:
        low, high = bounds.rows
        words = f"the table has {low} to {high} rows, as the {bounds.intervals} intervals before suggest"
        found.append(
            gxe.ExpectTableRowCountToBeBetween(min_value=low, max_value=high, severity=severity, meta={WORDS: words})
        )
    if bounds.newest_after is not None and rows:
        words = f"the newest row is of {bounds.newest_after:%Y-%m-%d %H:%M:%S} UTC or later, as is usual"
        bound = _as_spark_says(bounds.newest_after)
        meta = {WORDS: words, COLUMN: "event_time"}
        found.append(
            gxe.ExpectColumnMaxToBeBetween(column=EVENT_TIMESTAMP, min_value=bound, severity=severity, meta=meta)
        )
    return found


def _as_spark_says(moment: datetime) -> datetime:
    """Return a time in UTC without its zone, like the maximum of a column from Spark."""
    return moment.astimezone(UTC).replace(tzinfo=None)
