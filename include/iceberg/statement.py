"""What a commit states about its interval: ranges, fates, content hashes, and which verdict registered it.

Also a table's properties of completeness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from include.ledger.completeness.properties import KEYS
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.inventory import registered_rows
from include.ledger.lineage import BuiltRevision
from include.times import format_time

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

BUILD = "tidemark.build"
"""Key of a summary that only Tidemark's snapshots have: the number of the build."""

INTERVAL = "tidemark.interval"
"""Key of a summary: the interval's label."""


@dataclass(frozen=True)
class Statement:
    """What is stated about an interval, and the tag of its verdict."""

    label: str
    tag: str
    build: int
    attempt: AttemptSpec

    def summary(self, revisions: Sequence[BuiltRevision]) -> dict[str, str]:
        """Return the summary of a snapshot or a Delta commit; values that are not plain are JSON."""
        spec, built = self.attempt, self.attempt.findings.build
        interval = spec.pinned.interval
        # The interval may have been pinned again since the build.
        ranges = built.ranges if built and built.ranges else spec.pinned.ranges
        return {
            "tidemark.pipeline": spec.pinned.pipeline,
            INTERVAL: self.label,
            "tidemark.from": format_time(interval.from_time),
            "tidemark.to": format_time(interval.to_time),
            "tidemark.ranges": _json([each.as_json() for each in ranges]),
            "tidemark.records": _json(asdict(built.records) if built else {}),
            "tidemark.reconciliation": _json(asdict(built.reconciliation) if built else {}),
            "tidemark.content-hashes": _json({each.partition: each.content_hash for each in revisions}),
            "tidemark.rows": str(sum(each.rows for each in revisions)),
            BUILD: str(self.build),
            "tidemark.attempt": str(spec.id),
            "tidemark.code-version": spec.code_version,
        }


def statement_of(attempt: AttemptSpec) -> Statement:
    """Return the statement about the interval that a build of an attempt registers."""
    assert attempt.build is not None
    label = attempt.pinned.interval.label
    return Statement(label, f"{label}-{attempt.build}", attempt.build, attempt)


def is_own(snapshot: Snapshot) -> bool:
    """Return whether Tidemark has committed a snapshot."""
    return snapshot.summary is not None and snapshot.summary[BUILD] is not None


def last_own(table: Table) -> Snapshot | None:
    """Return the newest snapshot in the head's history whose kept ancestors are all Tidemark's; None without one."""
    known = {each.snapshot_id: each for each in table.snapshots()}
    kept: Snapshot | None = None
    at = table.current_snapshot()
    while at is not None:
        kept = (kept or at) if is_own(at) else None
        at = known.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
    return kept


def completeness_of(table: Table) -> dict[str, str]:
    """Return a table's present properties of completeness."""
    return {key: table.properties[key] for key in KEYS if key in table.properties}


def may_state(
    table: Table, pipeline: str, said: Mapping[str, str], own: int | None = None, own_rows: int = 0
) -> Mapping[str, str]:
    """Return the properties of completeness that a table may state: none while it lacks rows that are registered.

    It was declared, or made anew, after they were. `own`: an interval that does not count, and its rows in the table.
    Rows are counted, not files compared: that would cost every commit more than the commit itself.
    """
    head = table.current_snapshot()
    rows = int(head.summary["total-records"] or 0) if head is not None and head.summary else 0
    return {} if said and rows - own_rows < registered_rows(table.name()[-1], pipeline, without=own) else said


def put_completeness(transaction: Transaction, said: Mapping[str, str]) -> None:
    """Set a table's properties of completeness, and remove its others, by the transaction's commit."""
    before = transaction.table_metadata.properties
    if said:
        transaction.set_properties(dict(said))
    if gone := [key for key in KEYS if key in before and key not in said]:
        transaction.remove_properties(*gone)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
