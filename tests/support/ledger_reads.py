"""What a piece of work costs the ledger: rows that PostgreSQL read for it, its statements, the rows that these
bring; counts and no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from sqlalchemy import Engine, event

from include.ledger.database import engine
from tests.conftest import wait_for

_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_ROWS = "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"


def rows_read(database: str, work: Callable[[], object]) -> dict[str, int]:
    """Rows that PostgreSQL read of each table of the database for the work, those without a row left out."""
    # A backend publishes its counts when it ends.
    engine().dispose()
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:

            def is_alone() -> bool:
                cursor.execute(_OTHERS)
                return cursor.fetchone() == (0,)

            def counts() -> dict[str, int]:
                wait_for("everybody else to leave the ledger", is_alone, 60)
                cursor.execute("SELECT pg_stat_clear_snapshot()")
                cursor.execute(_ROWS)
                return {str(table): int(rows) for table, rows in cursor.fetchall()}

            # As autovacuum leaves it: plans on stale statistics would be compared otherwise.
            cursor.execute("VACUUM ANALYZE")
            before = counts()
            work()
            engine().dispose()
            after = counts()
    finally:
        connection.close()
    return {table: rows - before.get(table, 0) for table, rows in after.items() if rows > before.get(table, 0)}


@contextmanager
def statements_of(used: Engine) -> Iterator[list[str]]:
    """The statements that an engine executes during the block, as they are sent."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(used, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(used, "before_cursor_execute", note)


@contextmanager
def rows_fetched(used: Engine) -> Iterator[list[int]]:
    """The rows that each statement of the block brings into this process, or changes."""
    rows: list[int] = []

    def note(_connection: object, cursor: Any, *_: object) -> None:
        rows.append(cursor.rowcount)

    event.listen(used, "after_cursor_execute", note)
    try:
        yield rows
    finally:
        event.remove(used, "after_cursor_execute", note)
