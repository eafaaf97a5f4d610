"""The ledger in numbers, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from include.ledger.database import session
from include.ledger.intervals.states import IntervalState
from include.ledger.models import IntervalRow, ViewKeys


@dataclass(frozen=True)
class IntervalCount:
    """A pipeline's intervals in one state."""

    pipeline: str
    state: IntervalState
    count: int
    last_end: datetime
    """End of the last of them."""


def interval_counts() -> list[IntervalCount]:
    """Return how many intervals of each pipeline are in each state."""
    wanted = (
        select(IntervalRow.pipeline, IntervalRow.state, func.count(), func.max(IntervalRow.to_time))
        .group_by(IntervalRow.pipeline, IntervalRow.state)
        .order_by(IntervalRow.pipeline, IntervalRow.state)
    )
    with session() as ledger:
        return [IntervalCount(name, IntervalState(state), n, end) for name, state, n, end in ledger.execute(wanted)]


def note_keys(pipeline: str, view: str, keys: int, version: int) -> None:
    """Note how many keys a view without a window has after a micro-batch; an older version changes nothing."""
    values = {"pipeline": pipeline, "view": view, "keys": keys, "version": version}
    statement = insert(ViewKeys).values(**values)
    newer = statement.on_conflict_do_update(
        index_elements=["pipeline", "view"],
        set_={"keys": keys, "version": version, "counted_at": func.now()},
        where=ViewKeys.version <= version,
    )
    with session() as ledger:
        ledger.execute(newer)


def key_counts(pipeline: str) -> dict[str, int]:
    """Return how many keys each view without a window has, as its stream counted them last."""
    with session() as ledger:
        rows = ledger.scalars(select(ViewKeys).where(ViewKeys.pipeline == pipeline))
        return {row.view: row.keys for row in rows}


def ledger_bytes() -> int:
    """Return the size of the ledger's database."""
    with session() as ledger:
        return int(ledger.scalar(select(func.pg_database_size(func.current_database()))) or 0)
