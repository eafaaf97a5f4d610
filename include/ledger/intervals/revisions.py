"""Revisions in the ledger: what was built, validated and registered for each table partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.models import Revision

RETIRED = frozenset({"superseded", "rejected", "discarded"})
"""States in which a revision only waits for housekeeping."""


@dataclass(frozen=True)
class BuiltRevision:
    """A revision as it lies in the lake."""

    table: str
    partition: str
    revision: str
    location: str
    rows: int
    content_hash: str
    files: dict[str, Any]

    def as_registered(self) -> dict[str, Any]:
        """The form of the contract's `registered`."""
        return {
            "table": self.table,
            "partition": self.partition,
            "location": self.location,
            "revision": self.revision,
            "rows": self.rows,
            "content_hash": self.content_hash,
        }


def as_built(row: Revision) -> BuiltRevision:
    """A ledger row as its revision lies in the lake."""
    return BuiltRevision(
        row.table_name, row.table_partition, row.id, row.location, row.rows, row.content_hash, dict(row.files)
    )


def note_built(attempt: int, interval_id: int, code_version: str, revisions: Iterable[BuiltRevision]) -> None:
    """Write the revisions of an attempt; its earlier ones that were never registered become discarded."""
    with session() as ledger:
        for built in revisions:
            ledger.merge(
                Revision(
                    id=built.revision,
                    table_name=built.table,
                    table_partition=built.partition,
                    interval_id=interval_id,
                    attempt_id=attempt,
                    location=built.location,
                    rows=built.rows,
                    content_hash=built.content_hash,
                    code_version=code_version,
                    state="built",
                    files=built.files,
                )
            )


def of_attempt(attempt: int) -> list[BuiltRevision]:
    """The revisions that an attempt built, by table and partition."""
    with session() as ledger:
        rows = ledger.scalars(
            select(Revision)
            .where(Revision.attempt_id == attempt)
            .order_by(Revision.table_name, Revision.table_partition)
        )
        return [as_built(row) for row in rows]


def registered_of_interval(interval_id: int) -> list[BuiltRevision]:
    """What the catalog points at for an interval."""
    with session() as ledger:
        rows = ledger.scalars(
            select(Revision)
            .where(Revision.interval_id == interval_id, Revision.state == "registered")
            .order_by(Revision.table_name, Revision.table_partition)
        )
        return [as_built(row) for row in rows]


def in_state(table: str, state: str) -> list[BuiltRevision]:
    """The table's revisions in a state, oldest first."""
    with session() as ledger:
        wanted = select(Revision).where(Revision.table_name == table, Revision.state == state)
        return [as_built(row) for row in ledger.scalars(wanted.order_by(Revision.built_at, Revision.table_partition))]


def registered(table: str, partition: str | None = None) -> list[Revision]:
    """Registered revisions of a table, or of one of its partitions."""
    with session() as ledger:
        wanted = select(Revision).where(Revision.table_name == table, Revision.state == "registered")
        if partition is not None:
            wanted = wanted.where(Revision.table_partition == partition)
        return list(ledger.scalars(wanted.order_by(Revision.table_partition)))


def set_state(revisions: Sequence[BuiltRevision], state: str) -> None:
    """Move revisions to a state; `registered` also notes when, and supersedes what was registered before."""
    with session() as ledger:
        for built in revisions:
            if state == "registered":
                _supersede(ledger, built)
            row = ledger.get_one(Revision, (built.revision, built.table, built.partition))
            row.state = state
            if state == "registered":
                row.registered_at, row.retired_at = func.now(), None
            elif state in RETIRED:
                row.retired_at = func.now()


def _supersede(ledger: Session, built: BuiltRevision) -> None:
    for row in ledger.scalars(
        select(Revision).where(
            Revision.table_name == built.table,
            Revision.table_partition == built.partition,
            Revision.state == "registered",
            Revision.id != built.revision,
        )
    ):
        row.state, row.retired_at = "superseded", func.now()
