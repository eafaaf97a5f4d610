"""Restarts of streams: how long and how often a driver has tried, and how one that hangs is shut out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import dropwhile

from sqlalchemy import ColumnElement, func, select

from include.ledger.archive.positions import of_query
from include.ledger.database import session
from include.ledger.models import MicroBatch, StreamLaunch, Writer
from include.ledger.streams.launches import UNSUBMITTED

STARTING = timedelta(minutes=3)
"""How long a driver may take from its launch to its lease."""

IN_A_ROW = timedelta(hours=1)
"""A driver that fails later than this after its start begins a new row of failures."""

STALLED_AT_START = "stalled before its first commit"
"""How the reason begins for which Airflow ended a driver of which a query has committed nothing at all."""

_MOST = 20
"""How many launches are read: more failures in a row than this change nothing."""


def failures_in_a_row(pipeline: str, within: timedelta) -> list[int | None]:
    """Return the exit codes of the newest launches that each failed within that time of their start, newest first.

    None stands for a driver that reported none: it was killed, or died before its first line. A launch whose end is not
    noted counts as ended when the next one was started, the newest one now. One that could not be submitted counts.
    """
    newest, now = _newest(pipeline)
    return _row(newest, now, within)


def failures_so_far(pipeline: str, within: timedelta, *, is_led: bool) -> list[int | None]:
    """Return what `failures_in_a_row` does, for a reader that comes while the newest launch may still run.

    That one has not failed if no end of it is noted and its driver holds the lease (`is_led`), or it is still starting.
    Once it has run for longer than `within`, the row is over. With `is_led` it is the newest that was submitted: what
    could not be after it changes nothing for the driver that runs.
    """
    newest, now = _newest(pipeline)
    if is_led:
        newest = list(dropwhile(lambda each: each.ended_for == UNSUBMITTED, newest))
    if not newest or newest[0].exit_code is not None or newest[0].ended_at is not None:
        return _row(newest, now, within)
    age = now - newest[0].launched_at
    if not is_led and age > STARTING:
        return _row(newest, now, within)
    return [] if age > within else _row(newest[1:], newest[0].launched_at, within)


def longest_in_a_row(pipeline: str, within: timedelta) -> timedelta:
    """Return how long the driver ran that ran longest of the newest row of failures; 0 without any.

    A newest launch without a noted end is not one of them.
    """
    newest, now = _newest(pipeline)
    begun = newest and newest[0].exit_code is None and newest[0].ended_at is None
    row = _failed(newest[1:], newest[0].launched_at, within) if begun else _failed(newest, now, within)
    return max((ran for _, ran in row), default=timedelta(0))


def stalls_in_a_row(pipeline: str, launch: str) -> int:
    """Return how many launches in a row before that one were each ended before a query's first commit, within a day.

    Those that could not be submitted do not count, however many there are.
    """
    newest, _ = _newest(pipeline, StreamLaunch.ended_for != UNSUBMITTED)
    stalls, ended = 0, None
    for each in newest:
        if ended is not None:
            if not each.ended_for.startswith(STALLED_AT_START) or ended - each.launched_at > timedelta(days=1):
                break
            stalls += 1
        if ended is not None or each.id == launch:
            ended = each.launched_at
    return stalls


def has_committed(pipeline: str, query: str, launch: str) -> bool:
    """Return whether a query that lands or counts has committed a micro-batch since that launch."""
    with session() as ledger:
        since = select(StreamLaunch.launched_at).where(StreamLaunch.id == launch).scalar_subquery()
        last = select(MicroBatch.committed_at).where(of_query(pipeline, query))
        last = last.order_by(MicroBatch.id.desc()).limit(1)
        return bool(ledger.scalar(select(last.scalar_subquery() >= since)))


def _newest(pipeline: str, *conditions: ColumnElement[bool]) -> tuple[Sequence[StreamLaunch], datetime]:
    """Return the newest launches that meet the conditions, newest first, and the ledger's time."""
    wanted = select(StreamLaunch).where(StreamLaunch.pipeline == pipeline, *conditions)
    with session() as ledger:
        now = ledger.scalars(select(func.clock_timestamp())).one()
        return ledger.scalars(wanted.order_by(StreamLaunch.number.desc()).limit(_MOST)).all(), now


def _row(launches: Sequence[StreamLaunch], ended: datetime, within: timedelta) -> list[int | None]:
    """Return the exit codes of the first launches that failed; the newest had ended by then."""
    return [code for code, _ in _failed(launches, ended, within)]


def _failed(
    launches: Sequence[StreamLaunch], ended: datetime, within: timedelta
) -> Iterator[tuple[int | None, timedelta]]:
    """Yield exit code and duration of the first launches that failed; the newest had ended by then."""
    for launch in launches:
        ran = (launch.ended_at or ended) - launch.launched_at
        if launch.exit_code == 0 or ran > within:
            return
        yield launch.exit_code, ran
        ended = launch.launched_at


def age_of(launch: str) -> timedelta:
    """Return how long ago a driver was launched, by the ledger's clock; hosts' clocks may differ."""
    with session() as ledger:
        age = select(func.clock_timestamp() - StreamLaunch.launched_at).where(StreamLaunch.id == launch)
        return ledger.scalars(age).one()


def shut_out(pipeline: str, token: int) -> bool:
    """End the lease of that fencing token, so that its driver can commit nothing more; False when it is over already.

    A driver that cannot renew its lease ends itself, on whatever host it runs.
    """
    with session() as ledger:
        row = ledger.get(Writer, pipeline, with_for_update=True)
        if row is None or row.token != token or not row.holder:
            return False
        row.token += 1
        row.holder, row.expires_at = "", func.clock_timestamp()
        return True
