"""Reports that an erasure writes again from the ledger, because it does not build their intervals again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, cast, func, select, true

from include.ledger.database import session
from include.ledger.erasures.unfinished import Begun, registered
from include.ledger.intervals.attempts import REBUILD
from include.ledger.models import Attempt, Build, IntervalRow
from include.times import Interval


@dataclass(frozen=True)
class CleanedReport:
    """What a report shows, as the ledger has it now."""

    label: str
    verdict: Mapping[str, Any]
    data: Mapping[str, Any]
    """Its sections and chart."""


def cleaned_reports(erasure: Begun, note: str) -> list[CleanedReport]:
    """Return the reports of other intervals in which a note stands in the place of a key, oldest first.

    Also those of intervals that held erased records and were never registered. Those that earlier erasures cleaned are
    among them: their reports are as they were.
    """
    build = (
        select(Build.findings["report"].label("report"))
        .join(Attempt, Attempt.id == Build.attempt_id)
        .where(Build.interval_id == IntervalRow.id, Attempt.ended_at.is_not(None), Attempt.run_by != REBUILD)
        .order_by(Build.id.desc())
        .limit(1)
        .lateral()
    )
    said = func.concat(cast(IntervalRow.verdict, Text), cast(build.c.report, Text))
    is_other = IntervalRow.id.not_in(erasure.intervals)
    wanted = (
        select(IntervalRow.from_time, IntervalRow.to_time, IntervalRow.verdict, build.c.report)
        .select_from(IntervalRow)
        .outerjoin(build, true())
        .where(IntervalRow.pipeline == erasure.pipeline, IntervalRow.verdict.is_not(None))
    )
    with session() as ledger:
        built_again = {row.id for row in registered(ledger, erasure)}
        is_not_built = IntervalRow.id.in_(set(erasure.intervals) - built_again)
        wanted = wanted.where(is_not_built | (is_other & (func.strpos(said, note) > 0)))
        rows = ledger.execute(wanted.order_by(IntervalRow.from_time)).tuples()
        return [
            CleanedReport(Interval(begin, end).label, verdict or {}, report or {})
            for begin, end, verdict, report in rows
        ]
