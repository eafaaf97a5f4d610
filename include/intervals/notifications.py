"""Notifications to the operators: what a report lists and the interval before did not.

The build notes what each listing holds; announcing an interval that passed sends what is new in it and marks
it as sent. A crash between the two sends a notification again: its `id` tells that it is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from include import kafka
from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import IntervalRow, ListedRow
from include.pipelines.spec import Listing, Pipeline
from include.times import format_time

MOST = 10_000
"""Rows of a listing that are noted; beyond that a notification each is of no use to anybody."""


def note_listed(pinned: PinnedInterval, listing: Listing, rows: Iterable[Mapping[str, Any]]) -> None:
    """Note what a listing of the interval holds; what was noted and sent before stays so."""
    by_key = {json.dumps({name: row[name] for name in listing.key}, sort_keys=True): dict(row) for row in rows}
    with session() as ledger:
        for old in ledger.scalars(
            select(ListedRow).where(ListedRow.interval_id == pinned.id, ListedRow.report == listing.title)
        ):
            if old.key not in by_key:
                ledger.delete(old)
        for key, row in by_key.items():
            values = {"interval_id": pinned.id, "report": listing.title, "key": key, "row": row}
            ledger.execute(
                insert(ListedRow)
                .values(**values)
                .on_conflict_do_update(index_elements=["interval_id", "report", "key"], set_={"row": row})
            )


def notify(pipeline: Pipeline, pinned: PinnedInterval) -> int:
    """Send what is newly listed in the interval, once; how many. Raises ServiceUnreachable."""
    listings = [report for report in pipeline.reports if isinstance(report, Listing) and report.notify]
    return sum(_notify(pipeline, pinned, listing) for listing in listings)


def _notify(pipeline: Pipeline, pinned: PinnedInterval, listing: Listing) -> int:
    with session() as ledger:
        before = (
            select(IntervalRow.id)
            .where(
                IntervalRow.pipeline == pipeline.name,
                IntervalRow.from_time < pinned.interval.from_time,
                IntervalRow.state == "registered",
            )
            .order_by(IntervalRow.from_time.desc())
            .limit(1)
            .scalar_subquery()
        )
        listed_before = select(ListedRow.key).where(ListedRow.interval_id == before, ListedRow.report == listing.title)
        # Locked until they are marked: two runs of the interval at once send each once.
        new = ledger.scalars(
            select(ListedRow)
            .where(
                ListedRow.interval_id == pinned.id,
                ListedRow.report == listing.title,
                ListedRow.notified_at.is_(None),
                ListedRow.key.not_in(listed_before),
            )
            .order_by(ListedRow.key)
            .with_for_update()
        ).all()
        if not new:
            return 0
        kafka.create_topic(listing.notify, 1)
        interval = format_time(pinned.interval.from_time)
        sent = kafka.send(listing.notify, (_message(pipeline, listing, interval, row) for row in new))
        for row in new:
            row.notified_at = func.now()
        return sent


def _message(pipeline: Pipeline, listing: Listing, interval: str, row: ListedRow) -> tuple[bytes, bytes]:
    body = {
        "id": f"{pipeline.name}/{interval}/{row.key}",
        "pipeline": pipeline.name,
        "report": listing.title,
        "interval": interval,
        **row.row,
    }
    return row.key.encode(), json.dumps(body, sort_keys=True).encode()
