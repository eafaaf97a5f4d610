"""How long `/metrics` waits for a ledger that hangs: it answers before Prometheus gives up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from include.errors import ServiceUnreachable
from include.settings import settings

T = TypeVar("T")

ANSWER_SECONDS, READ_SECONDS = 3, 6
"""How long the ledger may take to accept a connection, and to answer all that is asked; then it counts as down."""

_READERS = ThreadPoolExecutor(2, thread_name_prefix="metrics")
"""A reading that hangs keeps one of these; those that follow wait, each for its time, for another."""


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what `ask` returns. Raise ServiceUnreachable when that takes longer; it then goes on unheard."""
    asked = _READERS.submit(ask)
    try:
        return asked.result(seconds)
    except TimeoutError:
        asked.cancel()
        raise ServiceUnreachable(
            f"PostgreSQL at {settings().database_host()}: no answer within {seconds} seconds",
            remedy="./tidemark status; ./tidemark up postgres",
        ) from None
