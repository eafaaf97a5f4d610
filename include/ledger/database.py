"""The connection to the ledger, its migrations, and transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from include.errors import ServiceUnreachable
from include.settings import settings

# The ledger's few pages are in memory: at the default price of a random page, PostgreSQL reads a table of some
# thousand micro-batches whole where an index leads to twenty.
_OPTIONS = "-c timezone=UTC -c random_page_cost=1.1"


@lru_cache(maxsize=1)
def engine() -> Engine:
    """The process's engine on the ledger database; connections are checked before use."""
    return create_engine(
        settings().database("ledger"),
        pool_pre_ping=True,
        pool_size=4,
        connect_args={"connect_timeout": 10, "options": _OPTIONS},
    )


@contextmanager
def session() -> Iterator[Session]:
    """One transaction: committed at the end, rolled back by an exception.

    Raises ServiceUnreachable when PostgreSQL does not answer or goes away.
    """
    try:
        with Session(engine(), expire_on_commit=False) as opened, opened.begin():
            yield opened
    except OperationalError as error:
        raise unreachable(error) from error


def unreachable(error: OperationalError) -> ServiceUnreachable:
    """The error of a database that does not answer, with its address and without its password."""
    url = settings().database("ledger")
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    return ServiceUnreachable(
        f"PostgreSQL at {url.host}:{url.port}: {reason}", remedy="./tidemark status; ./tidemark up postgres"
    )


def migrate() -> None:
    """Bring the ledger's tables to this code's version (Alembic); a no-op when they are."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with engine().begin() as connection:
            # Two processes migrating at once would both create the tables: the second waits here.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7411042)")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise unreachable(error) from error
