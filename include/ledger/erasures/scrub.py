"""Remove what the ledger itself repeats of records: rows in reports, examples, outages and texts of errors."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from include.ledger.models import (
    AlertRow,
    Approval,
    Attempt,
    BatchFailure,
    Build,
    ExpectationRow,
    IntervalRow,
    LimitsVersion,
    ListedRow,
    OutageRow,
    QuarantineNote,
    RowOutput,
    StreamLaunch,
)
from include.pipelines.spec import Limit


class Forget(Protocol):
    """The keys to forget."""

    def named_in(self, value: str) -> bool:
        """Return whether a text holds one of the keys."""

    def is_one(self, value: Any) -> bool:
        """Return whether a JSON value is one of the keys."""

    def without(self, value: Any) -> Any:
        """Return a JSON value whose texts hold none of the keys."""


def forget(ledger: Session, pipeline: str, intervals: Collection[int], names: Forget) -> int:
    """Remove the keys from what the ledger holds of a pipeline, and return the number of rows that named one.

    Builds, attempts and expectations are searched if they belong to the intervals that held the records.
    """
    of_intervals = list(intervals)
    found = _forget_things(ledger, pipeline, names)
    for row in ledger.scalars(select(Build).where(Build.interval_id.in_(of_intervals))):
        found += _clean(row, names, Build.findings)
        for each in ledger.scalars(select(ExpectationRow).where(ExpectationRow.build_id == row.id)):
            found += _clean(each, names, ExpectationRow.observed, ExpectationRow.words)
        for asked in ledger.scalars(select(Approval).where(Approval.build_id == row.id)):
            found += _clean(asked, names, Approval.warnings)
    attempts = select(Attempt).where(Attempt.interval_id.in_(of_intervals)).options(undefer(Attempt.verdict))
    for attempt in ledger.scalars(attempts):
        found += _clean(attempt, names, Attempt.verdict)
    of_ids = select(IntervalRow).where(IntervalRow.id.in_(of_intervals)).options(undefer(IntervalRow.verdict))
    for interval in ledger.scalars(of_ids):
        found += _clean(interval, names, IntervalRow.verdict)
    for note in ledger.scalars(select(QuarantineNote).where(QuarantineNote.pipeline == pipeline)):
        found += _clean(note, names, QuarantineNote.detail, QuarantineNote.reason)
    for failure in ledger.scalars(select(BatchFailure).where(BatchFailure.pipeline == pipeline)):
        found += _clean(failure, names, BatchFailure.error)
    for launch in ledger.scalars(select(StreamLaunch).where(StreamLaunch.pipeline == pipeline)):
        found += _clean(launch, names, StreamLaunch.error)
    for output in ledger.scalars(select(RowOutput).where(RowOutput.pipeline == pipeline)):
        found += _clean(output, names, RowOutput.waits_for)
    for version in ledger.scalars(select(LimitsVersion).where(LimitsVersion.pipeline == pipeline)):
        found += _drop_limits(version, names)
    for alert in ledger.scalars(select(AlertRow).where(AlertRow.pipeline == pipeline)):
        found += _clean(alert, names, AlertRow.alert)
    return found


def expectations_naming(ledger: Session, intervals: Collection[int], names: Forget) -> int:
    """Return how many results of expectations name a key in published builds: their proofs repeat these."""
    results = select(ExpectationRow).join(Build, Build.id == ExpectationRow.build_id)
    published = results.where(Build.interval_id.in_(list(intervals)), Build.published_at.is_not(None))
    return sum(names.named_in(each.observed) or names.named_in(each.words) for each in ledger.scalars(published))


def _forget_things(ledger: Session, pipeline: str, names: Forget) -> int:
    """Delete listed rows and noted outages of the things themselves, and clean what those of others say of them.

    An outage of another thing stays with its places: the rows of that thing still give it.
    """
    listed = select(ListedRow).join(IntervalRow, IntervalRow.id == ListedRow.interval_id)
    found = 0
    for row in ledger.scalars(listed.where(IntervalRow.pipeline == pipeline)):
        found += _delete(ledger, row, names) or _clean(row, names, ListedRow.row)
    for outage in ledger.scalars(select(OutageRow).where(OutageRow.pipeline == pipeline)):
        found += _delete(ledger, outage, names) or _clean(outage, names, OutageRow.row, OutageRow.end_row)
    ledger.flush()
    return found


def _delete(ledger: Session, row: ListedRow | OutageRow, names: Forget) -> int:
    """Delete the row if a column of its key is one of the keys, as in archive rows: a mention is not enough."""
    if not any(names.is_one(value) for value in json.loads(row.key).values()):
        return 0
    ledger.delete(row)
    return 1


def _drop_limits(version: LimitsVersion, names: Forget) -> int:
    """Remove limits whose subject names a key, and note their rules: flags that they raised stay explained."""
    named = [each for each in version.limits if names.named_in(Limit(*each).subject)]
    if not named:
        return 0
    version.limits = [each for each in version.limits if each not in named]
    version.erased_rules = sorted({*version.erased_rules, *(Limit(*each).rule for each in named)})
    return 1


def _clean(row: object, names: Forget, *columns: InstrumentedAttribute[Any]) -> int:
    changed = 0
    for column in columns:
        value = getattr(row, column.key)
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if value is not None and names.named_in(said):
            setattr(row, column.key, names.without(value))
            changed = 1
    return changed
