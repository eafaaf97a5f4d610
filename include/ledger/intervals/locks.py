"""Who works on an interval: locks that end with the process that holds them, however it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from include.errors import AnotherWriter, LockLost, ServiceUnreachable, UsageError
from include.ledger.connection import await_ledger
from include.ledger.held_locks import NO_WAIT as NO_WAIT
from include.ledger.held_locks import Check, held_by, held_lock, held_names
from include.times import Interval

PATIENCE = timedelta(minutes=10)
"""How long a step waits for another that works on the same interval."""

_APPEND_WAITS = timedelta(minutes=5)
"""How long an append waits for replaced rows: for less than after which its stream would count as stalled."""


@contextmanager
def attempt_under_way(pipeline: str, interval: Interval, patience: timedelta = PATIENCE) -> Iterator[None]:
    """Keep the interval's ranges unchanged while an attempt works with them.

    Any number of attempts may be under way. Each step of one begins here, so it waits for a ledger that is away for
    seconds. Raises AnotherWriter when the interval is being pinned again for longer than `patience`,
    ServiceUnreachable, also at the end when the lock was lost.
    """
    await_ledger()
    why, name = f"{interval} is being pinned again", _name("attempts", pipeline, interval)
    with held_lock(name, patience, is_shared=True, waiting_for=why) as lock:
        if lock is None:
            raise _busy(pipeline, why, patience, name)
        yield


@contextmanager
def no_attempt_under_way(pipeline: str, interval: Interval) -> Iterator[None]:
    """Let no attempt of the interval begin during the block.

    Raises UsageError when one is under way, ServiceUnreachable.
    """
    with held_lock(_name("attempts", pipeline, interval)) as lock:
        if lock is None:
            raise UsageError(
                f"{interval} cannot be pinned again: an attempt of it is under way"
                f"{attempt_held_by(pipeline, interval)}",
                remedy="let it end, then pin it again",
                pipeline=pipeline,
            )
        yield


def attempt_held_by(pipeline: str, interval: Interval) -> str:
    """Return in words which process works on an attempt of the interval, as `held_by` does."""
    return held_by(_name("attempts", pipeline, interval))


@contextmanager
def publishing(pipeline: str, interval: Interval, patience: timedelta = PATIENCE) -> Iterator[Check]:
    """Hold the lock on publishing the interval; another publication of it waits.

    Yields a function that raises when the lock was lost: call it before each change of the catalog.
    Raises AnotherWriter when somebody else publishes it for longer than `patience`, ServiceUnreachable.
    """
    why, name = f"{interval} is being published", _name("publish", pipeline, interval)
    with held_lock(name, patience, waiting_for=why) as lock:
        if lock is None:
            raise _busy(pipeline, f"somebody else is publishing {interval}", patience, name)
        yield lock.check


@contextmanager
def making_tables(pipeline: str) -> Iterator[None]:
    """Hold the lock on making the pipeline's unused tables anew; others wait. Raises AnotherWriter."""
    with held_lock(name := f"tables:{pipeline}", PATIENCE) as lock:
        if lock is None:
            raise _busy(pipeline, "somebody else makes its tables anew", PATIENCE, name)
        yield


@contextmanager
def announcing(pipeline: str, interval: Interval, patience: timedelta = PATIENCE) -> Iterator[None]:
    """Hold the lock on announcing the interval; another one waits. Raises AnotherWriter, ServiceUnreachable."""
    why, name = f"{interval} is being announced", _name("announce", pipeline, interval)
    with held_lock(name, patience, waiting_for=why) as lock:
        if lock is None:
            raise _busy(pipeline, f"somebody else is announcing {interval}", patience, name)
        yield


@contextmanager
def publishing_delta(pipeline: str) -> Iterator[Check]:
    """Hold the lock on the version that the pipeline's Delta view shows; others wait. Raises AnotherWriter.

    Yields a function that raises LockLost: call it before each change.
    """
    with held_lock(name := f"delta:{pipeline}", timedelta(minutes=10)) as lock:
        if lock is None:
            raise AnotherWriter(
                f"another interval's publication changes its Delta view{held_by(name)}",
                remedy="publish again",
                pipeline=pipeline,
            )
        yield lock.check


@contextmanager
def replacing_rows(pipeline: str) -> Iterator[None]:
    """Let streams wait with their appends to the pipeline's Delta table (`await_replaced_rows`).

    Raises LockLost, also where the ledger does not answer: the caller has the lock on publishing in it, too.
    """
    try:
        with held_lock(_rows(pipeline), PATIENCE):
            yield
    except ServiceUnreachable as error:
        raise LockLost(error.message, remedy=error.remedy) from error


def await_replaced_rows(pipeline: str) -> None:
    """Wait while `replacing_rows` holds the pipeline's Delta table, for minutes at most.

    Delta keeps the two apart; without the wait, a stream that appends every second wins each time. So an append may
    come although the wait was too long, or the ledger does not answer.
    """
    why = "rows are being replaced in the Delta table"
    with suppress(ServiceUnreachable), held_lock(_rows(pipeline), _APPEND_WAITS, is_shared=True, waiting_for=why):
        pass


def with_attempts(pipeline: str, intervals: Iterable[Interval]) -> set[Interval]:
    """Return those of the intervals that some process works on as an attempt now. Raises ServiceUnreachable."""
    return _held("attempts", pipeline, intervals)


def with_publications(pipeline: str, intervals: Iterable[Interval]) -> set[Interval]:
    """Return those of the intervals that some process publishes now. Raises ServiceUnreachable."""
    return _held("publish", pipeline, intervals)


def _held(kind: str, pipeline: str, intervals: Iterable[Interval]) -> set[Interval]:
    named = {_name(kind, pipeline, interval): interval for interval in intervals}
    return {named[name] for name in held_names(named)}


def _busy(pipeline: str, what: str, patience: timedelta, name: str) -> AnotherWriter:
    waited = f", for more than {patience.total_seconds():.0f} s" if patience else ""
    told = waited + held_by(name)
    return AnotherWriter(f"{what}{told}", remedy="wait for it to end, then run this again", pipeline=pipeline)


def _name(kind: str, pipeline: str, interval: Interval) -> str:
    return f"{kind}:{pipeline}:{interval.from_time.isoformat()}"


def _rows(pipeline: str) -> str:
    return f"delta rows:{pipeline}"
