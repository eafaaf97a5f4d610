"""Remove what the ledger itself repeats of records: rows in reports, examples, outages and texts of errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ARRAY, ColumnElement, Select, Text, any_, cast, func, inspect, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from include.ledger.alerts import CAUSE_OVER, FAILED_AT
from include.ledger.erasures.columns import KeyColumns
from include.ledger.erasures.findings import MEASURED, SAID, FindingsScrub, without_observed
from include.ledger.erasures.former import views_in
from include.ledger.erasures.to_forget import KeysToForget
from include.ledger.models import (
    AlertRow,
    Approval,
    Attempt,
    Base,
    BatchFailure,
    Build,
    ExpectationRow,
    Generation,
    IntervalRow,
    LimitsVersion,
    ListedRow,
    Loss,
    OutageRow,
    QuarantineNote,
    RowOutput,
    StreamLaunch,
    Topic,
    TopicIncarnation,
)
from include.pipelines.spec import Limit

Row = TypeVar("Row", bound=Base)

_NOT_OF_ALERTS = frozenset(
    {"dag", "run", "task", "query", "interval", "intervals", "until", "keys", "max_keys", CAUSE_OVER, FAILED_AT}
)
"""Names of the facts of alerts that hold no key: by these their end is found, and a key may be a part of any time."""

_AT_ONCE = 200
"""Rows in memory at once."""

_LIKE, _ESCAPED = re.compile(r"[\\%_]"), r"\\\g<0>"
"""Characters that LIKE does not take for themselves, and how they are written."""


_KEY = "key"
"""Column of a row's whole key in examples."""


@dataclass(frozen=True)
class Forgotten:
    """How many rows of the ledger were changed, and what proofs still repeat of them."""

    rows: int
    in_proofs: int
    """Results of expectations in published builds that named a key."""
    reasons_in_proofs: int
    """Reasons of approvals of published builds that named one."""
    outages: Sequence[OutageRow]
    """Those that were deleted."""


def forget(
    ledger: Session, pipeline: str, intervals: Collection[int], names: KeysToForget, columns: Sequence[Sequence[str]]
) -> Forgotten:
    """Remove the keys from what the ledger holds of a pipeline.

    `columns`: those that hold the keys, each with the names that it had before, newest first.

    Of the intervals that held the records, builds, attempts and verdicts lose reports, examples, unknown fields and
    evidence. Those of the others, where a total names keys of any interval, are not built again: only what names a key
    goes, as everywhere in what an expectation observed.
    """
    held = KeyColumns(names, frozenset({_KEY, *_last_parts(columns), *_view_keys(ledger, pipeline)}))
    changed, deleted = _forget_outages(ledger, pipeline, held, columns)
    found = changed + len(deleted) + _forget_listed(ledger, pipeline, held, columns)
    found += _forget_findings(ledger, pipeline, frozenset(intervals), held)
    reasons = _forget_reasons(ledger, pipeline, names)
    observed = _forget_observed(ledger, pipeline, held)
    found += sum(observed.values()) + sum(reasons.values())
    for owner, *said in (
        (QuarantineNote.pipeline, QuarantineNote.detail, QuarantineNote.reason),
        (BatchFailure.pipeline, BatchFailure.error),
        (StreamLaunch.pipeline, StreamLaunch.error),
        (RowOutput.pipeline, RowOutput.waits_for),
        # Why persons opened a generation, accepted a loss, adopted a topic or left one.
        (Generation.pipeline, Generation.reason),
        (Loss.pipeline, Loss.reason),
        (TopicIncarnation.pipeline, TopicIncarnation.reason),
        (Topic.pipeline, Topic.left_for),
    ):
        for row in _naming(ledger, names, owner == pipeline, owner.property.parent.class_, *said):
            found += _change(row, names.without, *said)
    for alert in _naming(ledger, names, AlertRow.pipeline == pipeline, AlertRow, AlertRow.alert):
        found += _change(alert, partial(_without_in_alert, names), AlertRow.alert)
    for version in _naming(ledger, names, LimitsVersion.pipeline == pipeline, LimitsVersion, LimitsVersion.limits):
        found += _drop_limits(version, names)
    in_proofs, reasons_in_proofs = (
        sum(each[build] for build in _published(ledger, each)) for each in (observed, reasons)
    )
    return Forgotten(found, in_proofs, reasons_in_proofs, deleted)


def _last_parts(columns: Sequence[Sequence[str]]) -> set[str]:
    """Return the names that reports give to columns by default: those of values inside others are their last part."""
    return {part for each in columns for name in each for part in (name, name.rpartition(".")[2])}


def _view_keys(ledger: Session, pipeline: str) -> set[str]:
    """Return the columns by which views add up, also those of views that are not declared any more."""
    started = ledger.scalars(select(Generation.fingerprints).where(Generation.pipeline == pipeline))
    return {name for each in started for facts in views_in(each).values() for name in facts.get("key", ())}


def _intervals_of(pipeline: str) -> Select[int]:
    return select(IntervalRow.id).where(IntervalRow.pipeline == pipeline)


def _builds_of(pipeline: str) -> Select[int]:
    return select(Build.id).where(Build.interval_id.in_(_intervals_of(pipeline)))


def _forget_findings(ledger: Session, pipeline: str, own: Collection[int], held: KeyColumns) -> int:
    every, builds = _intervals_of(pipeline), _builds_of(pipeline)
    found = 0
    for of_interval, is_of_pipeline, said in (
        (Build.interval_id, Build.interval_id.in_(every), Build.findings),
        (Attempt.interval_id, Attempt.interval_id.in_(every), Attempt.verdict),
        (IntervalRow.id, IntervalRow.pipeline == pipeline, IntervalRow.verdict),
        (Approval.interval_id, Approval.build_id.in_(builds), Approval.warnings),
    ):
        model: type[Base] = said.property.parent.class_
        keys = ledger.execute(select(*inspect(model).primary_key).where(of_interval.in_(own)))
        for row in _locked(ledger, model, [tuple(each) for each in keys], said):
            found += _change(row, FindingsScrub(held, is_own=True).without, said)
        for row in _naming(ledger, held.keys, is_of_pipeline & of_interval.not_in(own), model, said):
            found += _change(row, FindingsScrub(held, is_own=False).without, said)
    return found


def _forget_reasons(ledger: Session, pipeline: str, names: KeysToForget) -> Counter[int]:
    """Clean the reasons of approvals and refusals, and return how many named a key, by build."""
    found: Counter[int] = Counter()
    for asked in _naming(ledger, names, Approval.build_id.in_(_builds_of(pipeline)), Approval, Approval.reason):
        found[asked.build_id] += _change(asked, names.without, Approval.reason)
    return found


def _forget_observed(ledger: Session, pipeline: str, held: KeyColumns) -> Counter[int]:
    """Clean the results of expectations, and return how many named a key, by build."""
    found: Counter[int] = Counter()
    said = ExpectationRow.observed, ExpectationRow.words
    of_pipeline = ExpectationRow.build_id.in_(_builds_of(pipeline))
    for each in _naming(ledger, held.keys, of_pipeline, ExpectationRow, *said):
        before = {name: getattr(each, name) for name in (*SAID, *MEASURED)}
        clean = without_observed(held, before, each.column_name)
        for name, value in clean.items():
            setattr(each, name, value)
        found[each.build_id] += before != {**before, **clean}
    return found


def _published(ledger: Session, builds: Collection[int]) -> Sequence[int]:
    return ledger.scalars(select(Build.id).where(Build.id.in_(builds), Build.published_at.is_not(None))).all()


def _naming(
    ledger: Session,
    names: KeysToForget,
    condition: ColumnElement[bool],
    model: type[Row],
    *columns: InstrumentedAttribute[Any],
) -> Iterator[Row]:
    """Yield the rows that meet a condition and in which one of the columns names a key, locked.

    They are read as texts: a pipeline may have many years of builds, and few of them name one. PostgreSQL
    leaves out nearly all that name none: builds wait meanwhile.
    """
    said, key = func.concat_ws("\n", *(cast(each, Text) for each in columns)), inspect(model).primary_key
    texts = select(said, *key).where(condition, _may_name(said, names))
    read = ledger.execute(texts.execution_options(yield_per=_AT_ONCE))
    named = [tuple(at) for said, *at in read if names.named_in(said)]
    return _locked(ledger, model, named, *columns)


def _locked(
    ledger: Session, model: type[Row], keys: Sequence[tuple[Any, ...]], *columns: InstrumentedAttribute[Any]
) -> Iterator[Row]:
    """Yield the rows with these primary keys, locked, and write what was changed of them."""
    # With columns that are read only when they are asked for, also of rows that the session has without them.
    rows = select(model).options(*map(undefer, columns)).execution_options(populate_existing=True)
    # With the lock of a change, which follows: whoever dismisses an alert changes the same column.
    rows = rows.with_for_update(key_share=True)
    for start in range(0, len(keys), _AT_ONCE):
        at_once = keys[start : start + _AT_ONCE]
        yield from ledger.scalars(rows.where(tuple_(*inspect(model).primary_key).in_(at_once))).all()
        # What is written is no longer kept in memory.
        ledger.flush()


def _may_name(said: ColumnElement[str], names: KeysToForget) -> ColumnElement[bool]:
    """Return the condition that a text holds one of the forms as it is, or escapes in which it may be."""
    if not any("\\" in form for form in names.forms):
        # JSON in JSON has nearly no other escapes.
        said = func.replace(said, '\\"', '"')
    # PostgreSQL's texts hold every character but NUL.
    parts = ("\\", *(form for form in names.forms if "\0" not in form))
    return said.like(any_(literal([f"%{_LIKE.sub(_ESCAPED, part)}%" for part in parts], ARRAY(Text))))


def _without_in_alert(names: KeysToForget, value: Any) -> Any:
    if isinstance(value, list):
        return [_without_in_alert(names, each) for each in value]
    if not isinstance(value, dict):
        return names.without(value)
    return {n: each if n in _NOT_OF_ALERTS else _without_in_alert(names, each) for n, each in value.items()}


def _forget_listed(ledger: Session, pipeline: str, held: KeyColumns, columns: Sequence[Sequence[str]]) -> int:
    """Delete listed rows of the things themselves, and clean what those of others say of them."""
    listed, found = ListedRow.interval_id.in_(_intervals_of(pipeline)), 0
    for row in _naming(ledger, held.keys, listed, ListedRow, ListedRow.key, ListedRow.row):
        if _is_of_keys(row.key, row.row, held, columns):
            ledger.delete(row)
            found += 1
        else:
            found += _change(row, held.without, ListedRow.row)
    ledger.flush()
    return found


def _forget_outages(
    ledger: Session, pipeline: str, held: KeyColumns, columns: Sequence[Sequence[str]]
) -> tuple[int, list[OutageRow]]:
    """Delete noted outages of the things themselves; return how many others were changed, and the deleted ones.

    An outage of another thing stays with its places: the rows of that thing still give it. So does one of which only
    one end has a key in a column that holds keys.
    """
    found, deleted, rows = 0, [], (OutageRow.row, OutageRow.end_row)
    for outage in _naming(ledger, held.keys, OutageRow.pipeline == pipeline, OutageRow, OutageRow.key, *rows):
        said = {each: row for each in rows if (row := getattr(outage, each.key)) is not None}
        of_keys = [each for each, row in said.items() if _is_of_keys(outage.key, row, held, columns)]
        if len(of_keys) == len(said):
            ledger.delete(outage)
            deleted.append(outage)
        else:
            changed = [_change(outage, held.alone if each in of_keys else held.without, each) for each in said]
            found += max(changed)
    ledger.flush()
    return found, deleted


def _is_of_keys(key: str, row: Mapping[str, Any], held: KeyColumns, columns: Sequence[Sequence[str]]) -> bool:
    """Return whether a column that holds keys is one of them, as in archive rows: a mention is not enough.

    A path that is no column may be one by its last part. Where none is there, any column of the row's key counts, too.
    """
    of_key: dict[str, Any] = json.loads(key)
    values = {**row, **of_key}
    # A former name only without the present one: the report's function may give it to another column.
    own = [name for each in columns if (name := next((name for name in each if name in values), None))]
    ends = _last_parts([each for each in columns if values.keys().isdisjoint(each)]) & values.keys()
    # The report may have given this name to another column of the archive.
    others = ends if own else {*ends, *of_key}
    return any(held.sought_in(name).is_one(values[name]) for name in (*own, *others))


def _drop_limits(version: LimitsVersion, names: KeysToForget) -> int:
    """Remove limits whose subject names a key, and note their rules: flags that they raised stay explained."""
    named = [each for each in version.limits if names.named_in(Limit(*each).subject)]
    if not named:
        return 0
    version.limits = [each for each in version.limits if each not in named]
    version.erased_rules = sorted({*version.erased_rules, *(Limit(*each).rule for each in named)})
    return 1


def _change(row: object, without: Callable[[Any], Any], *columns: InstrumentedAttribute[Any]) -> int:
    changed = 0
    for column in columns:
        value = getattr(row, column.key)
        if value is not None and (clean := without(value)) != value:
            setattr(row, column.key, clean)
            changed = 1
    return changed
