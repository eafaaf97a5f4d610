"""Columns from which the values of partition columns come, in registered revisions."""

from __future__ import annotations

from sqlalchemy import select

from include.ledger.database import session
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Build, Revision

_READ = (RevisionState.REGISTERED, RevisionState.REGISTERING)


def sources(table: str) -> dict[str, str]:
    """Return the partition columns of an archive's table by its newest registered build that noted them.

    Each with the column, or field of one, that its values come from. All such builds have the same.
    """
    wanted = (
        select(Build.partition_by)
        .join(Revision, Revision.build_id == Build.id)
        .where(Revision.table_name == table, Revision.state.in_(_READ), Build.partition_by.is_not(None))
        .order_by(Build.id.desc())
    )
    with session() as ledger:
        return dict(ledger.scalar(wanted.limit(1)) or {})
