"""Patience with a ledger that is away for seconds: PostgreSQL is restarted, or a standby takes over.

Only a stream's driver is patient, and for less than its lease lasts: nobody else may commit for its pipeline meanwhile.
Commands fail at once.
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

_LOOK_AGAIN = 0.25
"""Seconds between two tries."""


@dataclass
class _Patience:
    """This process's patience, which all of its threads share."""

    seconds: float = 0.0
    """How long a step may be tried again; 0 for a process that is not patient."""
    away_since: float | None = None
    """When the first step failed of those that are tried again."""

    def is_over(self, state: RetryCallState) -> bool:
        """Return whether a step is not tried again."""
        return (state.seconds_since_start or 0.0) >= self.seconds


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


def tried_again(step: Callable[[], T], away: type[Exception] = ServiceUnreachable) -> T:
    """Run a step that may be repeated; try it again while it raises `away` and the process is patient."""
    if not _PATIENCE.seconds:
        return step()
    # Here, because commands that only read are never patient, and it is slow to import.
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    tries = Retrying(
        retry=retry_if_exception_type(away),
        stop=_PATIENCE.is_over,
        wait=wait_fixed(_LOOK_AGAIN),
        before_sleep=_note_away,
        reraise=True,
    )
    result = tries(step)
    _note_back()
    return result


def repeatable(function: Callable[P, T]) -> Callable[P, T]:
    """Let calls of a function that may be repeated be tried again while the process is patient."""

    @wraps(function)
    def patiently(*arguments: P.args, **named: P.kwargs) -> T:
        return tried_again(lambda: function(*arguments, **named))

    return patiently


def _note_away(state: RetryCallState) -> None:
    with _LOCK:
        if _PATIENCE.away_since is not None:
            return
        _PATIENCE.away_since = time.monotonic()
    error = state.outcome.exception() if state.outcome else None
    logging.getLogger("tidemark").warning(
        "waiting up to %.0f s for the ledger: %s", _PATIENCE.seconds, one_line(str(error))
    )


def _note_back() -> None:
    if _PATIENCE.away_since is None:
        return
    with _LOCK:
        since, _PATIENCE.away_since = _PATIENCE.away_since, None
    if since is not None:
        logging.getLogger("tidemark").warning("the ledger answers again after %.1f s", time.monotonic() - since)
