"""Who works on an interval: locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import OperationalError
from tenacity import Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from include.errors import AnotherWriter, UsageError
from include.ledger.database import engine, unreachable
from include.times import Interval

PATIENCE = timedelta(minutes=10)
"""How long a step waits for another that works on the same interval."""

AT_ONCE = timedelta(0)
"""No patience: whoever finds the interval taken goes on without it."""


@contextmanager
def attempt_under_way(pipeline: str, interval: Interval, patience: timedelta = PATIENCE) -> Iterator[None]:
    """Keep the interval's ranges as they are while an attempt works with them.

    Any number of attempts may be under way. Raises AnotherWriter when the interval is being pinned again for longer
    than `patience`, ServiceUnreachable.
    """
    with _connection() as connection:
        key = _key("attempts", pipeline, interval)
        if not _take(connection, func.pg_try_advisory_lock_shared(key), patience, f"{interval} is being pinned again"):
            raise _busy(pipeline, f"{interval} is being pinned again", patience)
        try:
            yield
        finally:
            connection.execute(select(func.pg_advisory_unlock_shared(key)))


@contextmanager
def no_attempt_under_way(pipeline: str, interval: Interval) -> Iterator[None]:
    """Let no attempt of the interval begin to work meanwhile.

    Raises UsageError when one is under way, ServiceUnreachable.
    """
    with _connection() as connection:
        key = _key("attempts", pipeline, interval)
        if not connection.scalar(select(func.pg_try_advisory_lock(key))):
            raise UsageError(
                f"{interval} cannot be pinned again: an attempt of it is under way",
                remedy="let it end, then pin it again",
                pipeline=pipeline,
            )
        try:
            yield
        finally:
            connection.execute(select(func.pg_advisory_unlock(key)))


@contextmanager
def publishing(pipeline: str, interval: Interval, patience: timedelta = PATIENCE) -> Iterator[Callable[[], None]]:
    """Publish the interval alone: another that publishes it waits.

    Yields what raises when the lock was lost meanwhile: to be called before each change of the catalog.
    Raises AnotherWriter when somebody else publishes it for longer than `patience`, ServiceUnreachable.
    """
    with _connection() as connection:
        key = _key("publish", pipeline, interval)
        if not _take(connection, func.pg_try_advisory_lock(key), patience, f"{interval} is being published"):
            raise _busy(pipeline, f"somebody else is publishing {interval}", patience)

        def check() -> None:
            try:
                connection.execute(select(1))
            except OperationalError as error:
                raise unreachable(error) from error

        try:
            yield check
        finally:
            connection.execute(select(func.pg_advisory_unlock(key)))


def _busy(pipeline: str, what: str, patience: timedelta) -> AnotherWriter:
    waited = f", for more than {patience.total_seconds():.0f} s" if patience else ""
    return AnotherWriter(f"{what}{waited}", remedy="wait for it to end, then run this again", pipeline=pipeline)


@contextmanager
def _connection() -> Iterator[Connection]:
    """A connection of its own, outside of any transaction: its locks last as long as the process, at most."""
    try:
        with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            try:
                yield connection
            except BaseException:
                # Ended with whatever it holds, and not given back to the pool.
                connection.invalidate()
                raise
    except OperationalError as error:
        raise unreachable(error) from error


def _key(kind: str, pipeline: str, interval: Interval) -> object:
    return func.hashtextextended(f"{kind}:{pipeline}:{interval.from_time.isoformat()}", 0)


def _take(connection: Connection, lock: object, patience: timedelta, why: str) -> bool:
    wanted = select(lock)  # type: ignore[call-overload]
    if connection.scalar(wanted):
        return True
    if not patience:
        return False
    logging.getLogger("tidemark").warning("waiting: %s", why)
    waiting = Retrying(
        stop=stop_after_delay(patience.total_seconds()),
        wait=wait_fixed(0.5),
        retry=retry_if_not_result(bool),
        retry_error_callback=lambda _: False,
    )
    return bool(waiting(lambda: connection.scalar(wanted)))
