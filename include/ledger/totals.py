"""The ledger in numbers, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.intervals.states import IntervalState
from include.ledger.models import IntervalRow


@dataclass(frozen=True)
class IntervalCount:
    """A pipeline's intervals in one state."""

    pipeline: str
    state: IntervalState
    count: int
    last_end: datetime
    """End of the last of them."""


def interval_counts() -> list[IntervalCount]:
    """Return how many intervals of each pipeline are in which state."""
    wanted = (
        select(IntervalRow.pipeline, IntervalRow.state, func.count(), func.max(IntervalRow.to_time))
        .group_by(IntervalRow.pipeline, IntervalRow.state)
        .order_by(IntervalRow.pipeline, IntervalRow.state)
    )
    with session() as ledger:
        return [IntervalCount(name, IntervalState(state), n, end) for name, state, n, end in ledger.execute(wanted)]


def ledger_bytes() -> int:
    """Return the size of the ledger's database."""
    with session() as ledger:
        return int(ledger.scalar(select(func.pg_database_size(func.current_database()))) or 0)
