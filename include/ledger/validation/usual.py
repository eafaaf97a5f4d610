"""What is usual of a table: rows and freshness of the registered intervals before one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from include.ledger.database import session
from include.ledger.intervals.states import IntervalState, RevisionState
from include.ledger.models import IntervalRow, Revision
from include.times import Interval, time_or_none

MOST = 168
"""How many intervals to look back: a week of hours."""


@dataclass(frozen=True)
class PastInterval:
    """What an earlier interval registered of a table."""

    rows: int
    lag: timedelta | None
    """From its newest event time to the interval's end; None without a row with such a time."""


def past_intervals(pipeline: str, table: str, judged: Interval) -> list[PastInterval]:
    """Return the registered intervals before one, newest first, at most MOST; those without a row are among them.

    Only those of its length: a day has more rows than an hour, and the pipeline's schedule may have been changed.
    """
    intervals = (
        select(IntervalRow.id, IntervalRow.to_time)
        .where(
            IntervalRow.pipeline == pipeline,
            IntervalRow.from_time < judged.from_time,
            IntervalRow.to_time - IntervalRow.from_time == judged.to_time - judged.from_time,
            IntervalRow.state == IntervalState.REGISTERED,
        )
        .order_by(IntervalRow.from_time.desc())
        .limit(MOST)
    )
    with session() as ledger:
        ends = dict(ledger.execute(intervals).tuples().all())
        delivered = ledger.execute(
            select(Revision.interval_id, Revision.rows, Revision.files).where(
                Revision.interval_id.in_(ends),
                Revision.table_name == table,
                Revision.state == RevisionState.REGISTERED,
            )
        ).tuples()
        by_interval: dict[int, list[tuple[int, dict[str, Any]]]] = {number: [] for number in ends}
        for number, rows, files in delivered:
            by_interval[number].append((rows, files))
    return [_past(ends[number], of_interval) for number, of_interval in by_interval.items()]


def _past(end: datetime, delivered: list[tuple[int, dict[str, Any]]]) -> PastInterval:
    bounds = [file["event_time"] for _, files in delivered for file in files.values() if "event_time" in file]
    # Spark also has years that Python has not.
    newest = [moment for _, latest in bounds if (moment := time_or_none(latest)) is not None]
    return PastInterval(sum(rows for rows, _ in delivered), end - max(newest) if newest else None)
