"""Rows that reports with notifications list per interval, and which of them operators were notified of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import IntervalRow, ListedRow
from include.times import format_time, utc


@dataclass(frozen=True)
class Listed:
    """A row of a listing."""

    key: str
    """JSON object of the listing's key columns."""
    row: Mapping[str, Any]


@dataclass(frozen=True)
class ListedReport:
    """What a listing of an interval holds."""

    report: str
    """The listing's title."""
    rows: tuple[Listed, ...]
    former: Mapping[str, str] = field(default_factory=dict)
    """Names that key columns had before, with the present ones. What was recorded by such a name keeps its key."""


LONGEST_KEY = 2400
"""Bytes of the texts in a key; one entry of PostgreSQL's indexes holds 2,704, other columns included."""

_BEGINNING, _WITH_BEGINNING = 16, 9
"""Characters that an abbreviated text keeps, in a key of up to so many texts: no more would fit into an index."""

LEAST_ABBREVIATED = 50
"""Bytes of the shortest text that may be abbreviated: more than those of a hash alone, as it is or in JSON."""

NOT_RENAMED: Mapping[str, str] = MappingProxyType({})


def replace_listed(ledger: Session, interval_id: int, listed: ListedReport) -> None:
    """Record what a listing of the interval holds, within a transaction; what was sent before stays marked as sent."""
    by_key = {each.key: dict(each.row) for each in listed.rows}
    recorded: dict[str, str] = {}
    own = ListedRow.interval_id == interval_id, ListedRow.report == listed.report
    for old in ledger.scalars(select(ListedRow).where(*own)).all():
        key = present_key(old.key, listed.former)
        if key in by_key and key not in recorded:
            recorded[key] = old.key
        else:
            ledger.delete(old)
    for key, row in by_key.items():
        values = {"interval_id": interval_id, "report": listed.report, "key": recorded.get(key, key), "row": row}
        ledger.execute(
            insert(ListedRow)
            .values(**values)
            .on_conflict_do_update(index_elements=["interval_id", "report", "key"], set_={"row": row})
        )


@contextmanager
def sending_new(pinned: PinnedInterval, report: str, former: Mapping[str, str] = NOT_RENAMED) -> Iterator[list[Listed]]:
    """Yield what is newly listed in the interval and was not sent, and mark it as sent when the block succeeds.

    `former`: names that key columns had before, with the present ones. The rows are locked meanwhile: two runs of the
    interval at once send each once.
    """
    before = (
        select(IntervalRow.id)
        .where(
            IntervalRow.pipeline == pinned.pipeline,
            IntervalRow.from_time < pinned.interval.from_time,
            IntervalRow.state == "registered",
        )
        .order_by(IntervalRow.from_time.desc())
        .limit(1)
        .scalar_subquery()
    )
    listed_before = select(ListedRow.key).where(ListedRow.interval_id == before, ListedRow.report == report)
    with session() as ledger:
        new = ledger.scalars(
            select(ListedRow)
            .where(
                ListedRow.interval_id == pinned.id,
                ListedRow.report == report,
                ListedRow.notified_at.is_(None),
                ListedRow.key.not_in(listed_before),
            )
            .order_by(ListedRow.key)
            .with_for_update()
        ).all()
        if new:
            known = {present_key(key, former) for key in ledger.scalars(listed_before)}
            new = [row for row in new if present_key(row.key, former) not in known]
        yield [Listed(row.key, row.row) for row in new]
        for row in new:
            row.notified_at = func.now()


def key_of(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the key of a listed row: a JSON object of its key columns, with long values abbreviated."""
    return _as_key({name: row[name] for name in columns})


def _as_key(values: Mapping[str, Any]) -> str:
    key = json.dumps(values, sort_keys=True)
    if len(key) <= LONGEST_KEY:
        return key
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    long = {name for name, text in texts.items() if len(json.dumps(text)) > most_of(len(texts))}
    return json.dumps(
        {name: abbreviated(texts[name], len(texts)) if name in long else value for name, value in values.items()},
        sort_keys=True,
    )


def most_of(texts: int) -> int:
    """Return how many bytes one of so many texts of a key has if it is not abbreviated in a key that is too long."""
    return max(LEAST_ABBREVIATED, LONGEST_KEY // texts)


def abbreviated(text: str, texts: int) -> str:
    """Return one of so many texts of a key by its beginning, if they are few, and a hash of all of it."""
    return text[: _BEGINNING if texts <= _WITH_BEGINNING else 0] + hashed(text)


def hashed(text: str) -> str:
    """Return the part of an abbreviated text in which it differs from all other ones."""
    return f"… sha256 {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}"


def present_key(key: str, former: Mapping[str, str]) -> str:
    """Return a recorded key as `key_of` gives it now; `former` has the names that its columns had before.

    Earlier code recorded long keys as they are, if the index held them.
    """
    if not former and len(key) <= LONGEST_KEY:
        return key
    return _as_key({former.get(name, name): value for name, value in json.loads(key).items()})


def plain(value: object) -> str | int:
    """Return a value as the ledger's JSON holds it: numbers stay numbers, so that a page aligns them."""
    if value is None:
        return ""
    if isinstance(value, int):
        return value
    # PostgreSQL's JSON holds every character but this one.
    return format_time(utc(value)) if isinstance(value, datetime) else str(value).replace("\0", "\ufffd")
