"""The connection to the ledger, its transactions, its locks and its migrations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from psycopg2.errors import UndefinedColumn, UndefinedTable
from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.settings import settings

LOCK_SECONDS = 60
"""How long a statement waits for a lock that another transaction holds."""

STATEMENT_SECONDS = 300
"""How long a statement may take."""

IDLE_SECONDS = 120
"""How long a transaction may be open without a statement; it is ended then, and its locks are free."""

SILENT_SECONDS = 30
"""How long the other side of a connection may be silent although it is asked: then its host has vanished."""

_MIGRATION = 7411042
"""Key of the lock that lets one process at a time migrate."""


@lru_cache(maxsize=1)
def engine() -> Engine:
    """Return the process's engine on the ledger database; it checks connections before use."""
    return create_engine(
        settings().database("ledger"),
        pool_pre_ping=True,
        pool_size=4,
        connect_args={"connect_timeout": 10, "options": _server_options(), **_client_options()},
    )


def _server_options() -> str:
    """Return what PostgreSQL applies to a connection; by the timeouts no process and no host blocks others for long."""
    silent = SILENT_SECONDS * 1000
    options = {
        "timezone": "UTC",
        # The ledger's few pages are in memory: at the default price of a random page, PostgreSQL reads a table of some
        # thousand micro-batches whole where an index leads to twenty.
        "random_page_cost": "1.1",
        "lock_timeout": f"{LOCK_SECONDS}s",
        "statement_timeout": f"{STATEMENT_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
        "tcp_keepalives_idle": f"{SILENT_SECONDS // 3}s",
        "tcp_keepalives_interval": f"{SILENT_SECONDS // 6}s",
        "tcp_keepalives_count": "4",
        "tcp_user_timeout": f"{silent}ms",
        # Also a statement that waits for a lock ends when its client is gone.
        "client_connection_check_interval": f"{SILENT_SECONDS // 3}s",
    }
    return " ".join(f"-c {name}={value}" for name, value in options.items())


def _client_options() -> dict[str, int]:
    """Return the same for this side of the connection (libpq): a server that has vanished is noticed as soon."""
    return {
        "keepalives": 1,
        "keepalives_idle": SILENT_SECONDS // 3,
        "keepalives_interval": SILENT_SECONDS // 6,
        "keepalives_count": 4,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
    }


@contextmanager
def session() -> Iterator[Session]:
    """Open one transaction: committed at the end, rolled back by an exception.

    Raises ServiceUnreachable when PostgreSQL does not answer in time or goes away, TidemarkError when the ledger's
    tables are of another version of the code.
    """
    try:
        with Session(engine(), expire_on_commit=False) as opened, opened.begin():
            yield opened
    except DBAPIError as error:
        if isinstance(error, OperationalError) or error.connection_invalidated:
            raise unreachable(error) from error
        if isinstance(error.orig, UndefinedTable | UndefinedColumn):
            raise TidemarkError(
                f"the ledger's tables are of another version of the code: {one_line(str(error.orig))}",
                remedy="./tidemark up postgres brings them to this one",
            ) from error
        raise


def unreachable(error: DBAPIError) -> ServiceUnreachable:
    """Return the error of a database that does not answer, with its address and without its password."""
    url = settings().database("ledger")
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    return ServiceUnreachable(
        f"PostgreSQL at {url.host}:{url.port}: {reason}", remedy="./tidemark status; ./tidemark up postgres"
    )


def lock(ledger: Session, name: str) -> None:
    """Take the lock of that name for the rest of the transaction; wait for the transaction that holds it."""
    ledger.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def migrate() -> None:
    """Bring the ledger's tables to this code's version; do nothing when they are."""
    try:
        with engine().begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            # Two processes migrating at once would both create the tables: the second waits here.
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION)))
            upgrade(connection)
    except OperationalError as error:
        raise unreachable(error) from error


def upgrade(connection: Connection, version: str = "head") -> None:
    """Apply the migrations (Alembic) up to a version in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)
