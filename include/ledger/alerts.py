"""Alerts: what operators are told of, once when it begins and once when it is over, on each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.models import AlertRow
from include.times import format_time

Tell = Callable[["Alert"], None]
"""Tells of an alert on one channel; raises when that did not succeed."""


@dataclass(frozen=True)
class Alert:
    """Something that the operators are told of, or, with `over_at`, that it is over."""

    key: str
    """What it is about: of one key, one alert is open at a time."""
    pipeline: str
    what: str
    place: str
    """Where it was seen: an interval, a run, a stream."""
    since: datetime
    todo: str
    """What to do about it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts that a channel may pass on, e.g. Airflow's dag, run and task."""
    over_at: datetime | None = None
    raised_at: datetime | None = field(default=None, compare=False)
    """When it was noted, by the ledger's clock; `since` is by that of whoever noticed it."""

    @property
    def state(self) -> str:
        """`raised`, or `recovered`."""
        return "raised" if self.over_at is None else "recovered"

    def as_json(self) -> dict[str, Any]:
        """Return what every channel says: state, pipeline, what, where, since, todo, over_at, and the facts."""
        said = {
            "state": self.state,
            "pipeline": self.pipeline,
            "what": self.what,
            "where": self.place,
            "since": format_time(self.since),
            "todo": self.todo,
        }
        over = {"over_at": format_time(self.over_at)} if self.over_at else {}
        return {**self.facts, **said, **over}


def note_alert(alert: Alert) -> bool:
    """Note that something is so; return whether it was not known before. What was noted first stays as it was."""
    kept = {"what": alert.what, "place": alert.place, "todo": alert.todo, "facts": dict(alert.facts)}
    values = {"key": alert.key, "pipeline": alert.pipeline, "since": alert.since, "alert": kept}
    statement = insert(AlertRow).values(**values, told={}, told_closed={}).on_conflict_do_nothing()
    with session() as ledger:
        return ledger.scalar(statement.returning(AlertRow.id)) is not None


def close_alert(key: str, facts: Mapping[str, Any] | None = None) -> bool:
    """Note that something is over, with what is known of its end; return whether it was open."""
    with session() as ledger:
        row = ledger.scalar(select(AlertRow).where(AlertRow.key == key, AlertRow.closed_at.is_(None)).with_for_update())
        if row is not None:
            row.closed_at = func.now()
            row.alert = {**row.alert, "facts": {**row.alert.get("facts", {}), **(facts or {})}}
        return row is not None


def add_facts(key: str, facts: Mapping[str, Any]) -> None:
    """Keep further facts of an open alert; what was told stays as it was."""
    with session() as ledger:
        row = ledger.scalar(select(AlertRow).where(AlertRow.key == key, AlertRow.closed_at.is_(None)).with_for_update())
        if row is not None:
            row.alert = {**row.alert, "facts": {**row.alert.get("facts", {}), **facts}}


def open_alerts(prefix: str = "") -> list[Alert]:
    """Return the open alerts whose keys begin so, in the order in which they were raised."""
    with session() as ledger:
        wanted = select(AlertRow).where(AlertRow.closed_at.is_(None), AlertRow.key.startswith(prefix, autoescape=True))
        return [_alert(row) for row in ledger.scalars(wanted.order_by(AlertRow.id))]


def tell_untold(channels: Mapping[str, Tell], failed: Callable[[str, Exception], None]) -> int:
    """Tell on each channel what was not told there yet, and return how many messages went out.

    The row is locked while it is told: of two processes one tells. A channel that raises is reported to `failed`, and
    tried again the next time. An alert that was over before a channel was told of it is not told there any more.
    """
    told = 0
    for number in _untold(channels):
        with session() as ledger:
            row = ledger.get_one(AlertRow, number, with_for_update=True)
            told += _tell_row(ledger, row, channels, failed)
    return told


def _untold(channels: Iterable[str]) -> list[int]:
    names = list(channels)
    open_untold = [(AlertRow.closed_at.is_(None)) & ~AlertRow.told.has_key(name) for name in names]
    over_untold = [
        AlertRow.closed_at.is_not(None) & AlertRow.told.has_key(name) & ~AlertRow.told_closed.has_key(name)
        for name in names
    ]
    if not names:
        return []
    with session() as ledger:
        return list(ledger.scalars(select(AlertRow.id).where(or_(*open_untold, *over_untold)).order_by(AlertRow.id)))


def _tell_row(
    ledger: Session, row: AlertRow, channels: Mapping[str, Tell], failed: Callable[[str, Exception], None]
) -> int:
    count, alert = 0, _alert(row)
    for name, tell in channels.items():
        done = row.told if row.closed_at is None else row.told_closed
        if name in done or (row.closed_at is not None and name not in row.told):
            continue
        try:
            tell(alert)
        except Exception as error:
            # Whatever a receiver does wrong: the others are told, and this one again later.
            failed(name, error)
            continue
        noted = {**done, name: format_time(datetime.now(UTC))}
        if row.closed_at is None:
            row.told = noted
        else:
            row.told_closed = noted
        count += 1
    ledger.flush()
    return count


def _alert(row: AlertRow) -> Alert:
    kept = row.alert
    return Alert(
        row.key,
        row.pipeline,
        kept["what"],
        kept["place"],
        row.since,
        kept["todo"],
        kept.get("facts", {}),
        row.closed_at,
        row.raised_at,
    )
