"""Rows that reports with notifications list per interval, and which of them operators were notified of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import IntervalRow, ListedRow
from include.times import format_time, utc


@dataclass(frozen=True)
class Listed:
    """A row of a listing."""

    key: str
    """JSON object of the listing's key columns."""
    row: Mapping[str, Any]


def replace_listed(interval_id: int, report: str, listed: Sequence[Listed]) -> None:
    """Record what a listing of the interval holds, in one transaction; what was sent before stays marked as sent."""
    by_key = {each.key: dict(each.row) for each in listed}
    with session() as ledger:
        for old in ledger.scalars(
            select(ListedRow).where(ListedRow.interval_id == interval_id, ListedRow.report == report)
        ):
            if old.key not in by_key:
                ledger.delete(old)
        for key, row in by_key.items():
            values = {"interval_id": interval_id, "report": report, "key": key, "row": row}
            ledger.execute(
                insert(ListedRow)
                .values(**values)
                .on_conflict_do_update(index_elements=["interval_id", "report", "key"], set_={"row": row})
            )


@contextmanager
def sending_new(pinned: PinnedInterval, report: str) -> Iterator[list[Listed]]:
    """Yield what is newly listed in the interval and was not sent, and mark it as sent when the block succeeds.

    The rows are locked meanwhile: two runs of the interval at once send each once.
    """
    before = (
        select(IntervalRow.id)
        .where(
            IntervalRow.pipeline == pinned.pipeline,
            IntervalRow.from_time < pinned.interval.from_time,
            IntervalRow.state == "registered",
        )
        .order_by(IntervalRow.from_time.desc())
        .limit(1)
        .scalar_subquery()
    )
    listed_before = select(ListedRow.key).where(ListedRow.interval_id == before, ListedRow.report == report)
    with session() as ledger:
        new = ledger.scalars(
            select(ListedRow)
            .where(
                ListedRow.interval_id == pinned.id,
                ListedRow.report == report,
                ListedRow.notified_at.is_(None),
                ListedRow.key.not_in(listed_before),
            )
            .order_by(ListedRow.key)
            .with_for_update()
        ).all()
        yield [Listed(row.key, row.row) for row in new]
        for row in new:
            row.notified_at = func.now()


def key_of(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the key of a listed row: a JSON object of its key columns."""
    return json.dumps({name: row[name] for name in columns}, sort_keys=True)


def plain(value: object) -> str | int:
    """Return a value as the ledger's JSON holds it: numbers stay numbers, so that a page aligns them."""
    if value is None:
        return ""
    if isinstance(value, int):
        return value
    # PostgreSQL's JSON holds every character but this one.
    return format_time(utc(value)) if isinstance(value, datetime) else str(value).replace("\0", "\ufffd")
