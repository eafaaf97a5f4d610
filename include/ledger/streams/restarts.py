"""Restarts of streams: how long and how often a driver has tried, and how one that hangs is shut out."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.models import StreamLaunch, Writer

_MOST = 20
"""How many launches are read: more failures in a row than this change nothing."""


def failures_in_a_row(pipeline: str, within: timedelta) -> list[int | None]:
    """Return the exit codes of the newest launches that each failed within that time of their start, newest first.

    None stands for a driver that reported none: it was killed, or died before its first line. A launch counts as ended
    when the next one was started, the newest one now.
    """
    with session() as ledger:
        now = ledger.scalars(select(func.clock_timestamp())).one()
        newest = ledger.scalars(
            select(StreamLaunch)
            .where(StreamLaunch.pipeline == pipeline)
            .order_by(StreamLaunch.number.desc())
            .limit(_MOST)
        ).all()
    failures: list[int | None] = []
    ended = now
    for launch in newest:
        if launch.exit_code == 0 or (launch.ended_at or ended) - launch.launched_at > within:
            break
        failures.append(launch.exit_code)
        ended = launch.launched_at
    return failures


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
