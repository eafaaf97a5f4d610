"""The ledger in numbers, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, case, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import insert

from include.ledger.database import session
from include.ledger.intervals.attempts import REBUILD
from include.ledger.intervals.states import IntervalState
from include.ledger.inventory import lost_attempts
from include.ledger.models import Attempt, IntervalRow, PinnedCount, ViewKeys
from include.ledger.patience import repeatable


@dataclass(frozen=True)
class IntervalCount:
    """A pipeline's intervals in one state."""

    pipeline: str
    state: IntervalState
    count: int
    last_end: datetime
    """End of the last of them."""


def interval_counts() -> list[IntervalCount]:
    """Return how many intervals of each pipeline are in each state; only those are read that are not registered.

    A pinned one whose last attempt failed, or ended without a verdict, has failed.
    """
    is_pinned = IntervalRow.state == IntervalState.PINNED
    lost = lost_attempts(is_pinned)
    last = (
        select((Attempt.exit_code != 0) | Attempt.id.in_(list(lost)))
        .where(Attempt.interval_id == IntervalRow.id, Attempt.run_by != REBUILD)
        .order_by(Attempt.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    state = case((is_pinned & last, IntervalState.FAILED.value), else_=IntervalRow.state)
    is_open = IntervalRow.state != IntervalState.REGISTERED
    each = select(IntervalRow.pipeline, state.label("state"), IntervalRow.to_time).where(is_open).subquery().c
    still_open = select(each.pipeline, each.state, func.count(), func.max(each.to_time))
    # One statement: it sees all of them at one moment.
    wanted = union_all(still_open.group_by(each.pipeline, each.state), _registered())
    with session() as ledger:
        counts = [IntervalCount(name, IntervalState(state), n, end) for name, state, n, end in ledger.execute(wanted)]
    return sorted((each for each in counts if each.count), key=lambda each: (each.pipeline, each.state))


def _registered() -> Select[str, str, int, datetime]:
    """Return the count of each pipeline's registered intervals, and the end of the last: all but those left open."""
    mine, is_registered = IntervalRow.pipeline == PinnedCount.pipeline, IntervalRow.state == IntervalState.REGISTERED
    left_open = select(func.count()).where(mine, IntervalRow.state != IntervalState.REGISTERED).scalar_subquery()
    last = select(IntervalRow.to_time).where(mine, is_registered).order_by(IntervalRow.to_time.desc()).limit(1)
    registered = literal(IntervalState.REGISTERED.value)
    return select(PinnedCount.pipeline, registered, PinnedCount.intervals - left_open, last.scalar_subquery())


@repeatable
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
