"""Locks for work that takes minutes: PostgreSQL's advisory locks, which end with the process that holds them.

Each is held on a connection of its own and outside of any transaction: a transaction left open for so long would
hold back the database's cleaning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from include.errors import AnotherWriter, LockLost
from include.ledger.database import engine, unreachable
from include.times import format_time
from include.waiting import wait_for

Check = Callable[[], None]
"""Raises LockLost when a lock that the caller holds was lost: call it before each change under the lock."""

NO_WAIT = timedelta(0)
"""No patience: whoever finds the lock taken goes on without it."""

_LOOK_AGAIN = 0.5
"""Seconds."""


@dataclass(frozen=True)
class HeldLock:
    """A lock that this process holds, as long as its connection lives."""

    _connection: Connection

    def check(self) -> None:
        """Raise LockLost when the connection, and the lock with it, was lost."""
        try:
            self._connection.execute(select(1))
        except OperationalError as error:
            why = unreachable(error)
            raise LockLost(why.message, remedy=why.remedy) from error


@contextmanager
def held_lock(
    name: str, patience: timedelta = NO_WAIT, *, is_shared: bool = False, waiting_for: str = ""
) -> Iterator[HeldLock | None]:
    """Hold the lock of that name during the block; shared locks exclude only those that are not shared.

    Yields None when the lock did not become free within `patience`. `waiting_for` is logged before the wait.
    Raises ServiceUnreachable.
    """
    mode = "_shared" if is_shared else ""
    key = func.hashtextextended(name, 0)
    unlock = select(getattr(func, f"pg_advisory_unlock{mode}")(key))
    with _connection() as connection:
        if not _take(connection, getattr(func, f"pg_try_advisory_lock{mode}")(key), patience, waiting_for):
            yield None
            return
        try:
            yield HeldLock(connection)
        except AnotherWriter:
            # Not by the connection's end, which PostgreSQL notices a moment later: who gives way may come back at once.
            with suppress(DBAPIError):
                connection.execute(unlock)
            raise
        connection.execute(unlock)


_OF_NAME = (
    "locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = "
    "current_database()) AND (classid::bigint << 32 | objid::bigint) = hashtextextended(name, 0)"
)
_HELD = text(
    f"SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE EXISTS (SELECT 1 FROM pg_locks WHERE {_OF_NAME})"
)
# Its parts are null for a user who may not read others' activity.
_HOLDER = text(
    "SELECT a.pid, coalesce(nullif(a.application_name, ''), 'no name'), a.state_change "
    "FROM (SELECT CAST(:name AS text) AS name) n JOIN pg_locks l "
    f"ON {_OF_NAME} JOIN pg_stat_activity a ON a.pid = l.pid "
    "ORDER BY a.state_change LIMIT 1"
)


def held_names(names: Collection[str]) -> set[str]:
    """Return those of the locks that some process holds now. Raises ServiceUnreachable."""
    if not names:
        return set()
    with _connection() as connection:
        return set(connection.scalars(_HELD, {"names": list(names)}))


def held_by(name: str) -> str:
    """Return in words, for the end of an error, who has held the lock without a statement for longest, and how to free
    it: PostgreSQL ends no lock of a process that was stopped or hangs. Empty when nobody holds it any more.

    Raises ServiceUnreachable.
    """
    with _connection() as connection:
        row = connection.execute(_HOLDER, {"name": name}).one_or_none()
    if row is None:
        return ""
    pid, application, asked_at = row
    last = f", whose last statement was at {format_time(asked_at)}" if asked_at else ""
    return f" ({application}{last}; if it hangs, this ends its lock: SELECT pg_terminate_backend({pid}))"


@contextmanager
def _connection() -> Iterator[Connection]:
    try:
        with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            try:
                yield connection
            except BaseException:
                # Closed with whatever it holds, and not returned to the pool.
                connection.invalidate()
                raise
    except OperationalError as error:
        raise unreachable(error) from error


def _take(connection: Connection, lock: object, patience: timedelta, waiting_for: str) -> bool:
    wanted = select(lock)  # type: ignore[call-overload]
    if connection.scalar(wanted):
        return True
    if not patience:
        return False
    if waiting_for:
        logging.getLogger("tidemark").warning("waiting: %s", waiting_for)
    return bool(wait_for(lambda: connection.scalar(wanted), seconds=patience.total_seconds(), every=_LOOK_AGAIN))
