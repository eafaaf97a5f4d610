"""Remove what the ledger itself repeats of records: rows in reports, examples, outages and texts of errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ARRAY, ColumnElement, Select, Text, any_, cast, func, inspect, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from include.ledger.alerts import CAUSE_OVER
from include.ledger.erasures.to_forget import KeysToForget
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

Row = TypeVar("Row", bound=Base)

_OF_DATA = frozenset({"sections", "chart", "unknown_fields", "examples", "where", "evidence", "observed", "words"})
"""Names of the parts of findings and verdicts that come from records."""

_NOT_OF_DATA = frozenset({"ranges", "fates", "class", "severity"})
"""Names of the parts that never do, and that the code reads: a topic may have the same name as a person."""

_NOT_OF_ALERTS = frozenset(
    {"dag", "run", "task", "query", "interval", "intervals", "until", "keys", "max_keys", CAUSE_OVER}
)
"""Names of the facts of alerts that never do: by these their end is found, and a key may be a part of any time."""

_AT_ONCE = 200
"""Rows in memory at once."""

_LIKE, _ESCAPED = re.compile(r"[\\%_]"), r"\\\g<0>"
"""Characters that LIKE does not take for themselves, and how they are written."""


@dataclass(frozen=True)
class Forgotten:
    """How many rows of the ledger named a key."""

    rows: int
    in_proofs: int
    """Those of them that are results of expectations in published builds: their proofs repeat these."""


def forget(
    ledger: Session, pipeline: str, intervals: Collection[int], names: KeysToForget, columns: Sequence[Sequence[str]]
) -> Forgotten:
    """Remove the keys from what the ledger holds of a pipeline.

    `columns`: those that hold the keys, each with the names that it had before, newest first.

    Builds, attempts and verdicts of the intervals that held the records are cleaned of every text. Those of the others,
    where a total names keys of any interval, are not built again: only what comes from records is cleaned.
    """
    found = _forget_things(ledger, pipeline, names, columns)
    found += _forget_findings(ledger, pipeline, frozenset(intervals), names)
    observed = _forget_observed(ledger, pipeline, names)
    found += sum(observed.values())
    for owner, *said in (
        (QuarantineNote.pipeline, QuarantineNote.detail, QuarantineNote.reason),
        (BatchFailure.pipeline, BatchFailure.error),
        (StreamLaunch.pipeline, StreamLaunch.error),
        (RowOutput.pipeline, RowOutput.waits_for),
    ):
        for row in _naming(ledger, names, owner == pipeline, owner.property.parent.class_, *said):
            found += _clean(row, names, *said)
    in_alerts = _Findings(names, is_own=True, not_of_data=_NOT_OF_ALERTS)
    for alert in _naming(ledger, names, AlertRow.pipeline == pipeline, AlertRow, AlertRow.alert):
        found += _clean(alert, in_alerts, AlertRow.alert)
    for version in _naming(ledger, names, LimitsVersion.pipeline == pipeline, LimitsVersion, LimitsVersion.limits):
        found += _drop_limits(version, names)
    return Forgotten(found, sum(observed[build] for build in _published(ledger, observed)))


def _intervals_of(pipeline: str) -> Select[int]:
    return select(IntervalRow.id).where(IntervalRow.pipeline == pipeline)


def _builds_of(pipeline: str) -> Select[int]:
    return select(Build.id).where(Build.interval_id.in_(_intervals_of(pipeline)))


def _forget_findings(ledger: Session, pipeline: str, own: Collection[int], names: KeysToForget) -> int:
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
    return found


def _forget_observed(ledger: Session, pipeline: str, names: KeysToForget) -> Counter[int]:
    """Clean the results of expectations, and return how many named a key, by build."""
    found: Counter[int] = Counter()
    said = ExpectationRow.observed, ExpectationRow.words
    of_pipeline = ExpectationRow.build_id.in_(_builds_of(pipeline))
    for each in _naming(ledger, names, of_pipeline, ExpectationRow, *said):
        found[each.build_id] += _clean(each, names, *said)
    return found


def _published(ledger: Session, builds: Collection[int]) -> Sequence[int]:
    return ledger.scalars(select(Build.id).where(Build.id.in_(builds), Build.published_at.is_not(None))).all()


def _naming(
    ledger: Session,
    names: KeysToForget,
    condition: ColumnElement[bool],
    model: type[Row],
    *columns: InstrumentedAttribute[Any],
) -> list[Row]:
    """Return the rows that meet a condition and in which one of the columns names a key, locked.

    They are read as texts: a pipeline may have many years of builds, and few of them name one. PostgreSQL
    leaves out nearly all that name none: builds wait meanwhile.
    """
    said, key = func.concat_ws("\n", *(cast(each, Text) for each in columns)), inspect(model).primary_key
    texts = select(said, *key).where(condition, _may_name(said, names))
    read = ledger.execute(texts.execution_options(yield_per=_AT_ONCE))
    named = [tuple(at) for said, *at in read if names.named_in(said)]
    # With columns that are read only when they are asked for, also of rows that the session has without them.
    rows = select(model).options(*map(undefer, columns)).execution_options(populate_existing=True)
    # With the lock of a change, which follows: whoever dismisses an alert changes the same column.
    rows = rows.with_for_update(key_share=True)
    return [
        row
        for start in range(0, len(named), _AT_ONCE)
        for row in ledger.scalars(rows.where(tuple_(*key).in_(named[start : start + _AT_ONCE])))
    ]


def _may_name(said: ColumnElement[str], names: KeysToForget) -> ColumnElement[bool]:
    """Return the condition that a text holds one of the forms as it is, or escapes in which it may be."""
    if not any("\\" in form for form in names.forms):
        # JSON in JSON has nearly no other escapes.
        said = func.replace(said, '\\"', '"')
    # PostgreSQL's texts hold every character but NUL.
    parts = ("\\", *(form for form in names.forms if "\0" not in form))
    return said.like(any_(literal([f"%{_LIKE.sub(_ESCAPED, part)}%" for part in parts], ARRAY(Text))))


@dataclass(frozen=True)
class _Findings:
    """The keys to forget in findings, verdicts and alerts, of which the code reads what does not come from records."""

    names: KeysToForget
    is_own: bool
    """Whether the interval held erased records: then every text is cleaned that nothing depends on."""
    not_of_data: Collection[str] = _NOT_OF_DATA

    def named_in(self, value: str) -> bool:
        return self.names.named_in(value)

    def without(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            return {name: self._without_in(name, each) for name, each in value.items()}
        return self.names.without(value) if self.is_own else value

    def _without_in(self, name: str, value: Any) -> Any:
        if name in self.not_of_data:
            return value
        if name in _OF_DATA:
            return self.names.without(value)
        if isinstance(value, dict | list) or not self.is_own:
            return self.without(value)
        # With its name: a number that counts something is no key.
        (clean,) = self.names.without({name: value}).values()
        return clean


def _forget_things(ledger: Session, pipeline: str, names: KeysToForget, columns: Sequence[Sequence[str]]) -> int:
    """Delete listed rows and noted outages of the things themselves, and clean what those of others say of them.

    An outage of another thing stays with its places: the rows of that thing still give it.
    """
    listed = ListedRow.interval_id.in_(_intervals_of(pipeline))
    found = 0
    for row in _naming(ledger, names, listed, ListedRow, ListedRow.key, ListedRow.row):
        found += _delete(ledger, row, names, columns) or _clean(row, names, ListedRow.row)
    rows = OutageRow.row, OutageRow.end_row
    for outage in _naming(ledger, names, OutageRow.pipeline == pipeline, OutageRow, OutageRow.key, *rows):
        found += _delete(ledger, outage, names, columns) or _clean(outage, names, *rows)
    ledger.flush()
    return found


def _delete(ledger: Session, row: ListedRow | OutageRow, names: KeysToForget, columns: Sequence[Sequence[str]]) -> int:
    """Delete the row if a column of its key is one of the keys, as in archive rows: a mention is not enough.

    Where the key has columns that hold keys, only these count: the number of a slot is no device's.
    """
    values: dict[str, Any] = json.loads(row.key)
    # A former name only without the present one: the report's function may give it to another column.
    own = [name for each in columns if (name := next((name for name in each if name in values), None))]
    if not any(names.is_one(values[name]) for name in own or values):
        return 0
    ledger.delete(row)
    return 1


def _drop_limits(version: LimitsVersion, names: KeysToForget) -> int:
    """Remove limits whose subject names a key, and note their rules: flags that they raised stay explained."""
    named = [each for each in version.limits if names.named_in(Limit(*each).subject)]
    if not named:
        return 0
    version.limits = [each for each in version.limits if each not in named]
    version.erased_rules = sorted({*version.erased_rules, *(Limit(*each).rule for each in named)})
    return 1


def _clean(row: object, names: KeysToForget | _Findings, *columns: InstrumentedAttribute[Any]) -> int:
    changed = 0
    for column in columns:
        value = getattr(row, column.key)
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if value is not None and names.named_in(said) and (clean := names.without(value)) != value:
            setattr(row, column.key, clean)
            changed = 1
    return changed
