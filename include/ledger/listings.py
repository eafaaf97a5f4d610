"""Rows that reports with notifications list per build, and which of them operators were notified of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, cast, delete, func, or_, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.states import IntervalState
from include.ledger.models import Build, IntervalRow, ListedRow
from include.times import format_time, utc


@dataclass(frozen=True)
class Listed:
    """A row of a listing."""

    key: str
    """JSON object of the listing's key columns."""
    row: Mapping[str, Any]


@dataclass(frozen=True)
class ListedReport:
    """What a listing of an interval holds, as a build of it found."""

    report: str
    """The listing's title."""
    rows: tuple[Listed, ...]


LONGEST_KEY = 2400
"""Bytes of the texts in a key; one entry of PostgreSQL's indexes holds 2,704, other columns included."""

_BEGINNING, _WITH_BEGINNING = 16, 9
"""Characters that an abbreviated text keeps, in a key of up to so many texts: no more would fit into an index."""

LEAST_ABBREVIATED = 50
"""Bytes of the shortest text that may be abbreviated: more than those of a hash alone, as it is or in JSON."""

NOT_RENAMED: Mapping[str, str] = MappingProxyType({})


def note_listed(ledger: Session, build: Build, listed: Iterable[ListedReport]) -> None:
    """Record what the listings of a new build hold, within a transaction; it counts once the build is registered.

    Of builds that can no longer be registered, or were replaced, only what was sent stays: nobody is told of it again.
    """
    wanted = select(Build.id).where(Build.attempt_id == build.attempt_id, Build.id < build.id)
    built_again = wanted.where(Build.registering_at.is_(None), Build.published_at.is_(None))
    useless = ListedRow.build_id.in_(built_again) | (ListedRow.build_id < _registered_build(build.interval_id))
    unsent = ListedRow.interval_id == build.interval_id, ListedRow.notified_at.is_(None)
    ledger.execute(delete(ListedRow).where(*unsent, useless).execution_options(synchronize_session=False))
    for report in listed:
        by_key = {each.key: dict(each.row) for each in report.rows}
        own = {"interval_id": build.interval_id, "build_id": build.id, "report": report.report}
        ledger.add_all(ListedRow(**own, key=key, row=row) for key, row in by_key.items())


def _registered_build(interval: int | ScalarSelect[int]) -> ScalarSelect[int]:
    """Return the build of an interval whose rows count; 0 where it was registered before builds were noted."""
    wanted = select(func.coalesce(func.max(Build.id), 0))
    return wanted.where(Build.interval_id == interval, Build.published_at.is_not(None)).scalar_subquery()


@contextmanager
def sending_new(
    pinned: PinnedInterval,
    report: str,
    former: Mapping[str, str] = NOT_RENAMED,
    most: int | None = None,
    columns: Collection[str] = (),
) -> Iterator[list[Listed]]:
    """Yield what is newly listed in the interval and was not sent, and mark it as sent when the block succeeds.

    Only what registered builds list counts. `columns` are those of the key, if they are known; `former`: names that
    they had before, with the present ones. Of the interval before at most the first `most` rows were recorded: if it
    had as many, what comes after them is not new, as far as anybody knows. Where it was built without this report, or
    with another key, nobody knows what is new: that is sent of the interval alone that was the newest when it was
    registered. What the interval after it lists, too, and was sent there, because it was registered first, is not new.
    The rows are locked meanwhile: two runs of the interval at once send each once.
    """
    before = (
        select(IntervalRow.id)
        .where(
            IntervalRow.pipeline == pinned.pipeline,
            IntervalRow.from_time < pinned.interval.from_time,
            _was_registered(),
        )
        .order_by(IntervalRow.from_time.desc())
        .limit(1)
        .scalar_subquery()
    )
    of_report, is_own = ListedRow.report == report, ListedRow.interval_id == pinned.id
    is_before = (ListedRow.interval_id == before) & (ListedRow.build_id == _registered_build(before))
    was_sent = ListedRow.notified_at.is_not(None)
    known_keys = select(ListedRow.key).where(of_report, is_before | (is_own & was_sent))
    after = _registered_after(pinned).with_only_columns(IntervalRow.id).scalar_subquery()
    of_after = select(ListedRow.key).where(of_report, ListedRow.interval_id == after)
    sent_after, still_there = of_after.where(was_sent), of_after.where(ListedRow.build_id == _registered_build(after))
    keys_before = select(ListedRow.key).where(of_report, is_before)
    with session() as ledger:
        new = ledger.scalars(
            select(ListedRow)
            .where(
                of_report,
                is_own,
                ListedRow.build_id == _registered_build(pinned.id),
                ListedRow.notified_at.is_(None),
                ListedRow.key.not_in(known_keys),
            )
            .order_by(ListedRow.key)
            .with_for_update()
        ).all()
        if new:
            known, *both = (
                {present_key(key, former) for key in ledger.scalars(each)}
                for each in (known_keys, sent_after, still_there)
            )
            known |= set.intersection(*both)
            new = [row for row in new if _is_by(row.key, former, columns) and present_key(row.key, former) not in known]
            recorded = ledger.scalars(keys_before).all()
            if not _was_listed(ledger, before, report, [present_key(key, former) for key in recorded], columns):
                new = new if _is_newest(ledger, pinned) else []
            if most is not None and len(recorded) >= most:
                last = max(_place(key, former) for key in recorded)
                new = [row for row in new if _place(row.key, former) < last]
        yield [Listed(row.key, row.row) for row in new]
        for row in new:
            row.notified_at = func.now()


def registered_too_early(pinned: PinnedInterval) -> PinnedInterval | None:
    """Return the next registered interval, if it was registered before this one ever was; None otherwise.

    What is new in it was found by an interval before this one, so it is to be looked at again.
    """
    first = select(func.min(Build.published_at)).where(Build.interval_id == pinned.id).scalar_subquery()
    with session() as ledger:
        row = ledger.scalars(_registered_after(pinned)).first()
        if row is None:
            return None
        was_early = select(Build.id).where(Build.id == _registered_build(row.id), Build.published_at < first)
        return pinned_of(ledger, row) if ledger.scalars(was_early).first() is not None else None


def _registered_after(pinned: PinnedInterval) -> Select[IntervalRow]:
    """Select the next interval of the pipeline that has registered rows."""
    return (
        select(IntervalRow)
        .where(
            IntervalRow.pipeline == pinned.pipeline,
            IntervalRow.from_time > pinned.interval.from_time,
            _was_registered(),
        )
        .order_by(IntervalRow.from_time)
        .limit(1)
    )


def _was_registered() -> ColumnElement[bool]:
    """Return the condition of an interval that has registered rows, also since it was pinned again and is to be run."""
    published = select(Build.id).where(Build.interval_id == IntervalRow.id, Build.published_at.is_not(None))
    # Earlier code noted no builds.
    return or_(IntervalRow.state == IntervalState.REGISTERED, published.exists())


def _was_listed(
    ledger: Session, before: ScalarSelect[int], report: str, recorded: Sequence[str], columns: Collection[str]
) -> bool:
    """Return whether the interval before was built with the report, by the same key; also where there is none before.

    `recorded` are the keys of its rows. Without any, its page has the report without rows; with rows, these were not
    recorded because the report did not notify then.
    """
    if recorded:
        return not columns or json.loads(recorded[0]).keys() == set(columns)
    empty = cast("$.report.sections[*] ? (@.rows.size() == 0).title", JSONPATH)
    titles = select(func.jsonb_path_query_array(Build.findings, empty)).where(Build.id == _registered_build(before))
    shown = ledger.scalars(titles).first()
    return shown is None or report in shown


def _is_newest(ledger: Session, pinned: PinnedInterval) -> bool:
    """Return whether no later interval was registered before this one's rows were.

    One that came after them takes them for known, whether or not they were sent yet.
    """
    own = select(Build.published_at).where(Build.id == _registered_build(pinned.id)).scalar_subquery()
    later = (
        select(IntervalRow.id)
        .join(Build, Build.interval_id == IntervalRow.id)
        .where(
            IntervalRow.pipeline == pinned.pipeline,
            IntervalRow.from_time > pinned.interval.from_time,
            Build.published_at < own,
        )
    )
    return ledger.scalars(later.limit(1)).first() is None


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


def _is_by(key: str, former: Mapping[str, str], columns: Collection[str]) -> bool:
    """Return whether a recorded key is by these columns, if they are known: by others, nobody knows what is new."""
    return not columns or json.loads(present_key(key, former)).keys() == set(columns)


def _place(key: str, former: Mapping[str, str]) -> list[tuple[int, Any]]:
    """Return by what keys of a listing are ordered: their values by the columns' names, null first."""
    return [place(value) for value in json.loads(present_key(key, former)).values()]


def place(value: object) -> tuple[int, Any]:
    """Return by what a part of a key is ordered, as Spark does: null first, numbers as numbers, texts as texts."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float | Decimal) else (2, str(value))


def plain(value: object) -> str | int:
    """Return a value as the ledger's JSON holds it: numbers stay numbers, so that a page aligns them."""
    if value is None:
        return ""
    if isinstance(value, int):
        return value
    # PostgreSQL's JSON holds every character but this one.
    return format_time(utc(value)) if isinstance(value, datetime) else str(value).replace("\0", "\ufffd")
