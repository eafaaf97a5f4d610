"""Note that an alert begins or is over, and send each on every channel once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, or_, select, text
from sqlalchemy.dialects.postgresql import insert

from include.ledger.alerts import CAUSE_OVER, DISMISSED, Alert, alert_of
from include.ledger.database import session
from include.ledger.models import AlertRow
from include.times import format_time

Send = Callable[[Alert], None]
"""Sends an alert on one channel; raises when that failed."""

IsAway = Callable[[str, Exception, bool], bool]
"""Takes a channel, its error, and whether it failed with this alert before; returns whether the channel is tried no
further now."""

SENDING_SECONDS = 600
"""How long a receiver may take until another process may send it the same alert; a task `watch` ends before that."""


def note_alert(alert: Alert) -> bool:
    """Note an alert; return whether it is new. What was noted first stays as it was."""
    kept = {"what": alert.what, "place": alert.place, "todo": alert.todo, "facts": dict(alert.facts)}
    values = {"key": alert.key, "pipeline": alert.pipeline, "since": alert.since, "alert": kept}
    statement = insert(AlertRow).values(**values, told={}, told_closed={}, failed={}).on_conflict_do_nothing()
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


def send_unsent(channels: Mapping[str, Send], is_away: IsAway) -> int:
    """Send on each channel what was not sent there yet, and return how many messages went out.

    Only one process at a time sends an alert on a channel. An error of a channel is passed to `is_away`: a
    channel that is away is not tried for the other alerts, so that an outage costs one wait per channel, however many
    alerts are open. What failed is tried again the next time, after what was never tried there, and what failed last
    comes last: alerts that a channel never takes hold back no other. An alert that was over before a channel sent it is
    no longer sent there. Raises ServiceUnreachable when the ledger cannot be reached.
    """
    told = 0
    for name, send in channels.items():
        for number in _untold(name):
            sent, no_further = _send_row(number, name, send, is_away)
            told += sent
            if no_further:
                break
    return told


def _untold(channel: str) -> list[int]:
    """Return the alerts that the channel has not sent: never tried ones first, then by their last failure there."""
    began = AlertRow.closed_at.is_(None) & ~AlertRow.told.has_key(channel)
    ended = AlertRow.closed_at.is_not(None) & AlertRow.told.has_key(channel) & ~AlertRow.told_closed.has_key(channel)
    order = AlertRow.failed[channel].astext.asc().nulls_first(), AlertRow.id
    with session() as ledger:
        return list(ledger.scalars(select(AlertRow.id).where(or_(began, ended)).order_by(*order)))


def _send_row(number: int, channel: str, send: Send, is_away: IsAway) -> tuple[int, bool]:
    """Send one alert on a channel; return how many messages went out, and whether the channel is not tried further.

    An end that comes while the begin is being sent is sent here, too: whoever noted it found the channel taken.
    """
    sent = 0
    with _sending(number, channel) as is_ours:
        while is_ours:
            alert, has_failed = _to_send(number, channel)
            if alert is None:
                break
            try:
                send(alert)
            except Exception as error:
                # Whatever a receiver does wrong: the others get the alert, and this one is tried again later.
                _note_failed(number, channel)
                return sent, is_away(channel, error, has_failed)
            _note_sent(number, channel, is_over=alert.over_at is not None)
            sent += 1
    return sent, False


@contextmanager
def _sending(number: int, channel: str) -> Iterator[bool]:
    """Keep other processes from sending an alert on a channel during the block; yields whether none does.

    Rows are not locked: a receiver may be slower than the ledger lets a transaction wait, and what closes or cleans an
    alert waits for none. PostgreSQL ends this transaction when its process is stopped for longer than any receiver
    takes.
    """
    with session() as ledger:
        ledger.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{SENDING_SECONDS}s'"))
        key = func.hashtextextended(f"alert:{number}:{channel}", 0)
        yield bool(ledger.scalar(select(func.pg_try_advisory_xact_lock(key))))


def _to_send(number: int, channel: str) -> tuple[Alert | None, bool]:
    """Return the alert, None if it was sent meanwhile, and whether it failed on the channel before."""
    with session() as ledger:
        row = ledger.get_one(AlertRow, number)
        done = row.told if row.closed_at is None else row.told_closed
        if channel in done or (row.closed_at is not None and channel not in row.told):
            return None, False
        return _alert(row), channel in row.failed


def _note_failed(number: int, channel: str) -> None:
    with session() as ledger:
        row = ledger.get_one(AlertRow, number, with_for_update=True)
        now = ledger.scalars(select(func.clock_timestamp())).one()
        row.failed = {**row.failed, channel: now.astimezone(UTC).isoformat(timespec="microseconds")}


def _note_sent(number: int, channel: str, *, is_over: bool) -> None:
    """Note that the channel has sent the alert's begin or end."""
    with session() as ledger:
        row = ledger.get_one(AlertRow, number, with_for_update=True)
        now = {channel: format_time(datetime.now(UTC))}
        if is_over:
            row.told_closed = {**row.told_closed, **now}
        else:
            row.told = {**row.told, **now}
        row.failed = {name: at for name, at in row.failed.items() if name != channel}


def _alert(row: AlertRow) -> Alert:
    return alert_of(row.key, row.pipeline, row.alert, row.since, row.closed_at, row.raised_at)
