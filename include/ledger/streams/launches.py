"""Drivers that were started detached: intent before the start, pid after it, exit code at the end."""

from __future__ import annotations

from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.models import StreamLaunch


def note_intent(launch: str, pipeline: str, host: str, log: str) -> None:
    """Note that a driver is about to be started."""
    with session() as ledger:
        ledger.add(StreamLaunch(id=launch, pipeline=pipeline, host=host, log=log))


def note_pid(launch: str, pid: int) -> None:
    """Note the process id of its spark-submit."""
    with session() as ledger:
        ledger.get_one(StreamLaunch, launch).pid = pid


def note_end(launch: str, exit_code: int) -> None:
    """Note how the driver ended; the driver itself does."""
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        if row is not None:
            row.ended_at, row.exit_code = func.now(), exit_code


def find(launch: str) -> StreamLaunch | None:
    """The launch of that id."""
    with session() as ledger:
        return ledger.get(StreamLaunch, launch)


def last(pipeline: str) -> StreamLaunch | None:
    """The pipeline's newest launch."""
    with session() as ledger:
        wanted = select(StreamLaunch).where(StreamLaunch.pipeline == pipeline)
        return ledger.scalar(wanted.order_by(StreamLaunch.launched_at.desc()).limit(1))
