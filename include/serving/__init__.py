"""One answer from both layers: each served view in PostgreSQL's database `serving`, as `live.<pipeline>_<view>`.

    public.<table>      the speed view's current value of each key, written by the stream (`live_rows`)
    proved.<table>      the registered revisions' partial values per interval, written after a registration (`follow`)
    live.<table>        the view that readers ask: proved, live or both, in one snapshot (`relations`, `query`)

Views with a `JdbcTable` are served; with the setting `serve` all are, of which the others have proved values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.errors import IdleInTransactionSessionTimeout, LockNotAvailable, ProgramLimitExceeded
from psycopg2.extensions import TransactionRollbackError, cursor

from include.errors import LockHeld, ServiceUnreachable, TidemarkError, one_line
from include.ledger.connection import driver_options, reading
from include.settings import settings

DATABASE = "serving"

STATEMENT_SECONDS = 900
"""How long a statement may take, the wait for another transaction included: the first load of a view takes minutes."""


@contextmanager
def transaction(remedy: str) -> Iterator[cursor]:
    """Open one transaction of the database `serving`, in UTC: committed at the end, rolled back by an exception.

    Its timeouts are the ledger's, except for statements: a process that is stopped in it, or whose host vanishes, does
    not hold up the stream.

    Raises ServiceUnreachable when PostgreSQL does not answer, LockHeld after a deadlock, TidemarkError with the remedy
    when it refuses.
    """
    where = f"PostgreSQL at {settings().database_host()}, database {DATABASE}"
    try:
        connection = psycopg2.connect(settings().database_uri(DATABASE), **_options())
        try:
            with connection, connection.cursor() as opened:
                yield opened
        finally:
            connection.close()
    except ProgramLimitExceeded as error:
        # psycopg2 counts it among the errors of a server that is away.
        raise TidemarkError(f"{where}: {one_line(str(error))}", remedy=remedy) from None
    except LockNotAvailable as error:
        raise ServiceUnreachable(
            f"{where}: {one_line(str(error))}: another transaction holds a served table or view",
            remedy="end it; pg_stat_activity names it",
        ) from None
    except TransactionRollbackError as error:
        raise LockHeld(
            f"{where}: {one_line(str(error))}: another command changes the same rows", remedy="run this again"
        ) from None
    except (psycopg2.OperationalError, psycopg2.InterfaceError, IdleInTransactionSessionTimeout) as error:
        raise ServiceUnreachable(f"{where}: {one_line(str(error))}", remedy="./tidemark status") from None
    except psycopg2.Error as error:
        raise TidemarkError(f"{where}: {one_line(str(error))}", remedy=remedy) from None


def refusal() -> str:
    """Return why the server refuses its database `serving` to this user; empty where it does not, or has none.

    Raises ServiceUnreachable when PostgreSQL does not answer at all.
    """
    try:
        with transaction("./tidemark doctor --repair"):
            return ""
    except ServiceUnreachable as error:
        refused = error.message
    with reading() as asked:
        asked.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
        return refused if asked.rowcount else ""


def _options() -> dict[str, Any]:
    options = driver_options()
    # Of an option given twice, the last value counts.
    options["options"] += f" -c lock_timeout=0 -c statement_timeout={STATEMENT_SECONDS}s"
    return options
