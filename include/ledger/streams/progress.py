"""What Spark reports on running queries: rates, durations by part, watermark and state; a bounded number per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import delete, func, select

from include.ledger.database import session
from include.ledger.models import ProgressRow

KEPT = 360
"""Rows of a query that are kept."""


@dataclass(frozen=True)
class QueryProgress:
    """A query at one moment."""

    query: str
    """`archive`, `flags`, or the name of a speed view."""
    batch_id: int
    at: datetime
    """When the micro-batch, or the look for new data, began."""
    input_rows: int
    input_rate: float
    """Records that arrived per second."""
    processing_rate: float
    """Records that were processed per second."""
    seconds: float
    parts: Mapping[str, float]
    """Seconds by Spark's name of the part, e.g. `addBatch`."""
    watermark: datetime | None = None
    state_rows: int = 0
    state_bytes: int = 0

    def is_current(self, held_since: datetime | None) -> bool:
        """Return whether the driver that has held the lease since then reported it.

        What an earlier driver measured is over; so is everything while nobody holds the lease (None).
        """
        return held_since is not None and self.at >= held_since


def note(pipeline: str, progress: Sequence[QueryProgress]) -> None:
    """Add rows, and remove those that lie more than `KEPT` behind, in one transaction. Raise ServiceUnreachable."""
    with session() as ledger:
        ledger.add_all(ProgressRow(pipeline=pipeline, **{**vars(each), "parts": dict(each.parts)}) for each in progress)
        ledger.flush()
        for query in {each.query for each in progress}:
            mine = (ProgressRow.pipeline == pipeline, ProgressRow.query == query)
            last_kept = (
                select(ProgressRow.id).where(*mine).order_by(ProgressRow.id.desc()).offset(KEPT - 1).limit(1)
            ).scalar_subquery()
            ledger.execute(delete(ProgressRow).where(*mine, ProgressRow.id < last_kept))


def recent(pipeline: str, most: int = KEPT) -> dict[str, list[QueryProgress]]:
    """Return each query's newest rows, oldest first."""
    number = func.row_number().over(partition_by=ProgressRow.query, order_by=ProgressRow.id.desc())
    newest = select(ProgressRow.id, number.label("number")).where(ProgressRow.pipeline == pipeline).subquery()
    # The columns alone: an open page asks for hundreds of rows every few seconds.
    wanted = (
        select(*(getattr(ProgressRow, each.name) for each in fields(QueryProgress)))
        .join(newest, newest.c.id == ProgressRow.id)
        .where(newest.c.number <= most)
        .order_by(ProgressRow.id)
    )
    by_query: dict[str, list[QueryProgress]] = {}
    with session() as ledger:
        for row in ledger.execute(wanted):
            by_query.setdefault(row.query, []).append(QueryProgress(*row))
    return by_query
