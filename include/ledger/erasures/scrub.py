"""Remove what the ledger itself repeats of records: rows in reports, examples, outages and texts of errors."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Select, Text, cast, func, inspect, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from include.ledger.models import (
    AlertRow,
    Approval,
    Attempt,
    Base,
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


Row = TypeVar("Row", bound=Base)

_OF_DATA = frozenset({"sections", "chart", "unknown_fields", "examples", "where", "evidence", "observed", "words"})
"""Names of the parts of findings and verdicts that come from records."""

_NOT_OF_DATA = frozenset({"ranges", "fates", "class", "severity"})
"""Names of the parts that never do, and that the code reads: a topic may have the same name as a person."""

_AT_ONCE = 200
"""Rows in memory at once."""


def forget(ledger: Session, pipeline: str, intervals: Collection[int], names: Forget) -> int:
    """Remove the keys from what the ledger holds of a pipeline, and return the number of rows that named one.

    Builds, attempts and verdicts of the intervals that held the records are cleaned of every text. Those of the others,
    where a total names keys of any interval, are not built again: only what comes from records is cleaned.
    """
    found = _forget_things(ledger, pipeline, names)
    found += _forget_findings(ledger, pipeline, frozenset(intervals), names)
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


def expectations_naming(ledger: Session, pipeline: str, names: Forget) -> int:
    """Return how many results of expectations name a key in published builds: their proofs repeat these."""
    published = _builds_of(pipeline).where(Build.published_at.is_not(None))
    found = ExpectationRow.build_id.in_(published)
    return len(_naming(ledger, names, found, ExpectationRow, ExpectationRow.observed, ExpectationRow.words))


def _intervals_of(pipeline: str) -> Select[int]:
    return select(IntervalRow.id).where(IntervalRow.pipeline == pipeline)


def _builds_of(pipeline: str) -> Select[int]:
    return select(Build.id).where(Build.interval_id.in_(_intervals_of(pipeline)))


def _forget_findings(ledger: Session, pipeline: str, own: Collection[int], names: Forget) -> int:
    every, builds = _intervals_of(pipeline), _builds_of(pipeline)
    texts = {is_own: _Findings(names, is_own) for is_own in (True, False)}
    found = 0
    for build in _naming(ledger, names, Build.interval_id.in_(every), Build, Build.findings):
        found += _clean(build, texts[build.interval_id in own], Build.findings)
    for attempt in _naming(ledger, names, Attempt.interval_id.in_(every), Attempt, Attempt.verdict):
        found += _clean(attempt, texts[attempt.interval_id in own], Attempt.verdict)
    for interval in _naming(ledger, names, IntervalRow.id.in_(every), IntervalRow, IntervalRow.verdict):
        found += _clean(interval, texts[interval.id in own], IntervalRow.verdict)
    for asked in _naming(ledger, names, Approval.build_id.in_(builds), Approval, Approval.warnings):
        found += _clean(asked, texts[asked.interval_id in own], Approval.warnings)
    observed = ExpectationRow.observed, ExpectationRow.words
    for each in _naming(ledger, names, ExpectationRow.build_id.in_(builds), ExpectationRow, *observed):
        found += _clean(each, names, *observed)
    return found


def _naming(
    ledger: Session,
    names: Forget,
    condition: ColumnElement[bool],
    model: type[Row],
    *columns: InstrumentedAttribute[Any],
) -> list[Row]:
    """Return the rows that meet a condition and in which one of the columns names a key.

    They are read as texts: a pipeline may have many years of builds, and few of them name one.
    """
    texts = select(func.concat_ws("\n", *(cast(each, Text) for each in columns)), *inspect(model).primary_key)
    read = ledger.execute(texts.where(condition).execution_options(yield_per=_AT_ONCE))
    named = [tuple(at) for said, *at in read if names.named_in(said)]
    return [ledger.get_one(model, at) for at in named]


@dataclass(frozen=True)
class _Findings:
    """The keys to forget in findings and verdicts, of which the code has to read what does not come from records."""

    names: Forget
    is_own: bool
    """Whether the interval held erased records: then every text is cleaned that nothing depends on."""

    def named_in(self, value: str) -> bool:
        return self.names.named_in(value)

    def without(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            return {name: self._without_in(name, each) for name, each in value.items()}
        return self.names.without(value) if self.is_own else value

    def _without_in(self, name: str, value: Any) -> Any:
        if name in _NOT_OF_DATA:
            return value
        if name in _OF_DATA:
            return self.names.without(value)
        if isinstance(value, dict | list) or not self.is_own:
            return self.without(value)
        # With its name: a number that counts something is no key.
        (clean,) = self.names.without({name: value}).values()
        return clean


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


def _clean(row: object, names: Forget | _Findings, *columns: InstrumentedAttribute[Any]) -> int:
    changed = 0
    for column in columns:
        value = getattr(row, column.key)
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if value is not None and names.named_in(said) and (clean := names.without(value)) != value:
            setattr(row, column.key, clean)
            changed = 1
    return changed
