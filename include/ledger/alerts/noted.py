"""Note that an alert begins or is over, and send each on every channel once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.ledger.alerts import CAUSE_OVER, DISMISSED, Alert, alert_of
from include.ledger.database import session
from include.ledger.models import AlertRow
from include.times import format_time

Send = Callable[[Alert], None]
"""Sends an alert on one channel; raises when that failed."""


def note_alert(alert: Alert) -> bool:
    """Note an alert; return whether it is new. What was noted first stays as it was."""
    kept = {"what": alert.what, "place": alert.place, "todo": alert.todo, "facts": dict(alert.facts)}
    values = {"key": alert.key, "pipeline": alert.pipeline, "since": alert.since, "alert": kept}
    statement = insert(AlertRow).values(**values, told={}, told_closed={}).on_conflict_do_nothing()
    with session() as ledger:
        return ledger.scalar(statement.returning(AlertRow.id)) is not None


def close_alert(key: str, facts: Mapping[str, Any] | None = None) -> bool:
    """Note that an alert is over, with facts about its end; return whether it was open."""
    with session() as ledger:
        row = ledger.scalar(select(AlertRow).where(AlertRow.key == key, AlertRow.closed_at.is_(None)).with_for_update())
        if row is not None:
            row.closed_at = func.now()
            row.alert = {**row.alert, "facts": {**row.alert.get("facts", {}), **(facts or {})}}
        return row is not None


def add_facts(key: str, facts: Mapping[str, Any]) -> None:
    """Add facts to an open alert; what was sent stays as it was."""
    with session() as ledger:
        row = ledger.scalar(select(AlertRow).where(AlertRow.key == key, AlertRow.closed_at.is_(None)).with_for_update())
        if row is not None:
            row.alert = {**row.alert, "facts": {**row.alert.get("facts", {}), **facts}}


def note_cause_over(key: str) -> None:
    """Note that the cause of a key's dismissed alerts is over; when it recurs, it is told again."""
    dismissed = AlertRow.alert["facts"].has_key(DISMISSED[0]) & ~AlertRow.alert["facts"].has_key(CAUSE_OVER)
    with session() as ledger:
        for row in ledger.scalars(select(AlertRow).where(AlertRow.key == key, dismissed).with_for_update()):
            facts = {**row.alert["facts"], CAUSE_OVER: format_time(datetime.now(UTC))}
            row.alert = {**row.alert, "facts": facts}


def send_unsent(channels: Mapping[str, Send], is_away: Callable[[str, Exception], bool]) -> int:
    """Send on each channel what was not sent there yet, and return how many messages went out.

    The row is locked meanwhile, so that only one process sends it. An error of a channel is passed to `is_away`: a
    channel that is away is not tried for the other alerts, so that an outage costs one wait per channel, however many
    alerts are open. What failed is tried again the next time. An alert that was over before a channel sent it is no
    longer sent there. Raises ServiceUnreachable when the ledger cannot be reached.
    """
    told, left = 0, dict(channels)
    for number in _untold(channels):
        if not left:
            break
        with session() as ledger:
            row = ledger.get_one(AlertRow, number, with_for_update=True)
            told += _send_row(ledger, row, left, is_away)
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


def _send_row(
    ledger: Session, row: AlertRow, channels: dict[str, Send], is_away: Callable[[str, Exception], bool]
) -> int:
    """Send one alert, and take the channels that are away out of `channels`."""
    count, alert = 0, _alert(row)
    for name, send in list(channels.items()):
        done = row.told if row.closed_at is None else row.told_closed
        if name in done or (row.closed_at is not None and name not in row.told):
            continue
        try:
            send(alert)
        except Exception as error:
            # Whatever a receiver does wrong: the others get the alert, and this one is tried again later.
            if is_away(name, error):
                del channels[name]
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
    return alert_of(row.key, row.pipeline, row.alert, row.since, row.closed_at, row.raised_at)
