"""Names of columns in the files of registered revisions, and names that columns had before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Build, IntervalRow, Revision

_READ = (RevisionState.REGISTERED, RevisionState.REGISTERING)


def lacking(table: str, names: Collection[str]) -> set[str]:
    """Return those of the names that a registered revision of a table does not have in its files."""
    listed = (
        select(Build.columns[table])
        .select_from(Revision)
        .outerjoin(Build, Build.id == Revision.build_id)
        .where(Revision.table_name == table, Revision.state.in_(_READ))
        .distinct()
    )
    with session() as ledger:
        known: list[Mapping[str, Any] | None] = list(ledger.scalars(listed))
    # Code that kept no columns wrote those of before.
    return {name for name in names if any(name not in (each or {}) for each in known)}


def lacking_in_build(build: int, table: str, names: Collection[str]) -> set[str]:
    """Return those of the names that the files of a build's table do not have."""
    if not names:
        return set()
    with session() as ledger:
        columns = (ledger.get_one(Build, build).columns or {}).get(table, {})
        return {name for name in names if name not in columns}


def intervals_lacking(pipeline: str, wanted: Mapping[str, Collection[str]]) -> list[PinnedInterval]:
    """Return the intervals with a registered revision whose files lack one of its table's names, oldest first."""
    with session() as ledger:
        found = {
            interval for table, names in wanted.items() for interval in _lacking_in(ledger, pipeline, table, names)
        }
        rows = ledger.scalars(select(IntervalRow).where(IntervalRow.id.in_(found)).order_by(IntervalRow.from_time))
        return [pinned_of(ledger, row) for row in rows]


def _lacking_in(ledger: Session, pipeline: str, table: str, names: Collection[str]) -> set[int]:
    rows = ledger.execute(
        select(Revision.interval_id, Build.columns[table])
        .outerjoin(Build, Build.id == Revision.build_id)
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .where(_of(pipeline), Revision.table_name == table, Revision.state.in_(_READ))
        .distinct()
    ).tuples()
    return {interval for interval, columns in rows if any(name not in (columns or {}) for name in names)}


def _of(pipeline: str) -> ColumnElement[bool]:
    return IntervalRow.pipeline == pipeline


def retired_names(pipeline: str, table: str) -> dict[str, set[str]]:
    """Return the names that columns of a table had before, as builds wrote them, each with the columns it was of."""
    listed = (
        select(Build.also_named)
        .join(IntervalRow, IntervalRow.id == Build.interval_id)
        .where(_of(pipeline), Build.also_named.is_not(None))
        .distinct()
    )
    found: dict[str, set[str]] = defaultdict(set)
    with session() as ledger:
        for named in ledger.scalars(listed):
            for before, name in (named or {}).get(table, {}).items():
                found[before].add(name)
    return dict(found)
