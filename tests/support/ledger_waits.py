"""Whether an action of the ledger waits for what another transaction holds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text
from sqlalchemy.orm import Session

from include.ledger.database import session
from tests.conftest import wait_for

_WAITING = text(
    "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() LIMIT 1"
)


def waiting_query() -> str:
    """Return the query with which a transaction waits for another one; empty when none does."""
    with session() as other:
        return other.scalar(_WAITING) or ""


def waits_with(action: Callable[[], object], hold: Callable[[Session], object]) -> str:
    """Return the query with which the action waits while a transaction holds a lock; empty when it does not wait.

    The transaction ends then, and the action too.
    """
    with ThreadPoolExecutor(1) as others:
        with session() as ledger:
            hold(ledger)
            begun = others.submit(action)
            wait_for("the action to wait or end", lambda: begun.done() or waiting_query(), 30, every=0.02)
            query = waiting_query()
        begun.result(30)
    return query
