"""Patience with a ledger that is away for seconds: PostgreSQL is restarted, or a standby takes over.

Only a stream's driver is patient, and for less than its lease lasts: nobody else may commit for its pipeline meanwhile.
An interval, a step of it and an erasure wait as long when they begin (`include.ledger.connection.await_ledger`). Other
commands fail at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from include.errors import ServiceUnreachable, one_line

if TYPE_CHECKING:
    from tenacity import RetryCallState

P = ParamSpec("P")
T = TypeVar("T")

SHARE = 0.7
"""Share of a stream's lease that is waited for a ledger that is away. While it lasts, nobody else may commit."""

_LOOK_AGAIN = 0.25
"""Seconds between two tries."""


@dataclass
class _Patience:
    """This process's patience, which all of its threads share."""

    seconds: float = 0.0
    """How long a step may be tried again; 0 for a process that is not patient."""
    away_since: float | None = None
    """When the first step failed of those that are tried again."""


_PATIENCE = _Patience()
_LOCK = threading.Lock()


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let this process be patient during the block; at its end no thread waits any longer."""
    _PATIENCE.seconds = seconds
    try:
        yield
    finally:
        _PATIENCE.seconds = 0.0


def tried_again(step: Callable[[], T], away: type[Exception] = ServiceUnreachable, seconds: float = 0.0) -> T:
    """Run a step that may be repeated; try it again while it raises `away` and the process is patient, or `seconds`."""

    def limit() -> float:
        return max(_PATIENCE.seconds, seconds)

    def is_over(state: RetryCallState) -> bool:
        return (state.seconds_since_start or 0.0) >= limit()

    if not limit():
        return step()
    # Here, because commands that only read are never patient, and it is slow to import.
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    tries = Retrying(
        retry=retry_if_exception_type(away),
        stop=is_over,
        wait=wait_fixed(_LOOK_AGAIN),
        before_sleep=lambda state: _note_away(state, limit()),
        reraise=True,
    )
    try:
        result = tries(step)
    except away:
        # The next wait is reported again.
        _forget_away()
        raise
    if (since := _forget_away()) is not None:
        logging.getLogger("tidemark").warning("the ledger answers again after %.1f s", time.monotonic() - since)
    return result


def repeatable(function: Callable[P, T]) -> Callable[P, T]:
    """Let calls of a function that may be repeated be tried again while the process is patient."""

    @wraps(function)
    def patiently(*arguments: P.args, **named: P.kwargs) -> T:
        return tried_again(lambda: function(*arguments, **named))

    return patiently


def _note_away(state: RetryCallState, seconds: float) -> None:
    with _LOCK:
        if _PATIENCE.away_since is not None:
            return
        _PATIENCE.away_since = time.monotonic()
    error = state.outcome.exception() if state.outcome else None
    logging.getLogger("tidemark").warning("waiting up to %.0f s for the ledger: %s", seconds, one_line(str(error)))


def _forget_away() -> float | None:
    """Return since when the ledger was away, to the first thread that asks; None to others."""
    with _LOCK:
        since, _PATIENCE.away_since = _PATIENCE.away_since, None
    return since
