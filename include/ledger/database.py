"""The connection to the ledger, its transactions, its locks and its migrations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from psycopg2.errors import (
    InsufficientPrivilege,
    LockNotAvailable,
    ProgramLimitExceeded,
    ReadOnlySqlTransaction,
    UndefinedColumn,
    UndefinedTable,
)
from psycopg2.extensions import TransactionRollbackError
from sqlalchemy import Connection, Engine, create_engine, func, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from include.errors import LockHeld, ServiceUnreachable, TidemarkError, UsageError, one_line
from include.ledger.connection import (
    LOCK_SECONDS,
    check_known,
    connect,
    does_not_answer,
    newest_migration,
    of_another_version,
)
from include.processes import ProcessOnHost
from include.settings import settings
from include.times import format_time
from include.waiting import wait_for

_MIGRATION = 7411042
"""Key of the lock that lets one process at a time migrate."""

CHANGE_SECONDS = 30
"""How long a change of a table waits for a lock. Whoever reads the table waits behind it meanwhile."""

# Those that wait hold nothing yet. Names are null for a user who may not read others' activity.
_USERS = text("""
    SELECT a.pid, coalesce(nullif(a.application_name, ''), 'no name'), coalesce(a.usename, 'unknown'), a.xact_start
    FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = a.pid AND l.granted
        AND c.relkind = 'r' AND c.relnamespace = CAST(current_schema() AS regnamespace)
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
    ORDER BY a.xact_start LIMIT 1
""")


@lru_cache(maxsize=1)
def engine() -> Engine:
    """Return the process's engine on the ledger database; it checks connections before use."""
    return create_engine(
        settings().database("ledger"),
        pool_pre_ping=True,
        pool_size=4,
        creator=connect,
    )


@contextmanager
def session() -> Iterator[Session]:
    """Open one transaction: committed at the end, rolled back by an exception.

    Raises ServiceUnreachable when PostgreSQL does not answer in time, goes away or takes no writes, LockHeld, and
    TidemarkError when the ledger's tables are of another version of the code.
    """
    with _named_errors(), Session(engine(), expire_on_commit=False) as opened, opened.begin():
        yield opened


@contextmanager
def statements() -> Iterator[Connection]:
    """Open a connection on which each statement is a transaction of its own.

    A process that is stopped between two statements holds no lock; inside a `session` it would. Raises what
    `session` raises.
    """
    with _named_errors(), engine().connect() as opened:
        yield opened.execution_options(isolation_level="AUTOCOMMIT")


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, LockNotAvailable):
            raise LockHeld(
                f"another command has held a lock in the ledger for more than {LOCK_SECONDS} s",
                remedy="run this again when that one has ended",
            ) from error
        if isinstance(error.orig, TransactionRollbackError):
            raise LockHeld(
                f"another command changes the same rows of the ledger: {one_line(str(error.orig))}",
                remedy="run this again",
            ) from error
        # A standby that was not promoted, or a database whose disk ran full, answers but takes no writes.
        is_away = isinstance(error, OperationalError) or isinstance(error.orig, ReadOnlySqlTransaction)
        # psycopg2 counts a value that is too long for an index among the errors of a server that is away.
        if (is_away and not isinstance(error.orig, ProgramLimitExceeded)) or error.connection_invalidated:
            raise unreachable(error) from error
        if isinstance(error.orig, UndefinedTable | UndefinedColumn):
            raise of_another_version(error.orig) from error
        raise


def unreachable(error: DBAPIError) -> ServiceUnreachable:
    """Return the error of a database that does not answer, with its address and without its password."""
    return does_not_answer(error.orig or error)


def lock(ledger: Session, name: str) -> None:
    """Take the lock of that name for the rest of the transaction; wait for the transaction that holds it."""
    ledger.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def clock() -> datetime:
    """Return the time by the ledger's clock; those of hosts may differ."""
    with session() as ledger:
        return ledger.scalars(select(func.clock_timestamp())).one()


def migrate() -> None:
    """Bring the ledger's tables to this code's version; do nothing when they have it.

    Raises UsageError when newer code has migrated them, drivers of older code run, or the user lacks a right,
    LockHeld when another transaction keeps using them, TidemarkError when they are not those of any version.
    """
    with _named_errors(), engine().begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        # Two processes migrating at once would both create the tables: the second waits here.
        if not connection.scalar(select(func.pg_try_advisory_xact_lock(_MIGRATION))):
            logging.getLogger("tidemark").warning("waiting: another process migrates the ledger")
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION)))
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{CHANGE_SECONDS}s'")
        if inspect(connection).has_table("alembic_version"):
            for migrated_to in connection.scalars(text("SELECT version_num FROM alembic_version")).all():
                check_known(migrated_to)
                if migrated_to != (newest := newest_migration()):
                    _check_no_driver(connection, migrated_to, newest)
        try:
            upgrade(connection)
        except ProgrammingError as error:
            if isinstance(error.orig, UndefinedTable | UndefinedColumn):
                raise _incomplete(one_line(str(error.orig))) from error
            if isinstance(error.orig, InsufficientPrivilege):
                raise UsageError(
                    f"this user may not make the ledger's tables: {one_line(str(error.orig))}",
                    remedy="make it the owner of the database ledger and of its tables, or migrate as their owner",
                ) from error
            raise
        except OperationalError as error:
            if isinstance(error.orig, LockNotAvailable):
                raise LockHeld(
                    f"another program has used the ledger's tables in one transaction for more than {CHANGE_SECONDS} s"
                    f"{_longest_transaction()}; nothing was migrated",
                    remedy="let it end, or end it, then run this again; pg_stat_activity has the younger ones",
                ) from error
            raise
        if missing := _missing(connection):
            raise _incomplete(f"there is no {', no '.join(missing)}")


def _check_no_driver(connection: Connection, migrated_to: str, newest: str) -> None:
    """Raise UsageError while a driver holds a lease: it would go on, and its code could not be started again."""
    # Not the model: its columns may be newer than the table.
    held = text("SELECT pipeline, holder FROM writers WHERE holder <> '' AND expires_at > clock_timestamp()")

    def writing() -> list[str]:
        holders = [(pipeline, ProcessOnHost.parse(holder)) for pipeline, holder in connection.execute(held)]
        return sorted(f"{pipeline} ({holder.short})" for pipeline, holder in holders if not holder.is_dead)

    # The lease of one that was killed in a container lapses.
    if live := wait_for(writing, lambda found: not found, seconds=settings().lease_seconds, every=0.5):
        raise UsageError(
            f"drivers of older code write {', '.join(live)}, and this code would migrate the ledger at "
            f"{settings().database_host()} from {migrated_to} to {newest}, which is not undone",
            remedy="if they are another installation's, give this one a PostgreSQL server of its own; else stop them, "
            "and let commands end: include/docs/runbook.md, “Upgrades”",
        )


def _longest_transaction() -> str:
    """Return in words which transaction that uses the ledger's tables is open for longest; empty without one.

    It need not be the one in the way: the error of a lock that was waited for in vain does not name that.
    """
    with statements() as connection:
        row = connection.execute(_USERS).first()
    if row is None:
        return ""
    pid, application, user, since = row
    began = f", since {format_time(since)}" if since else ""
    return (
        f"; the oldest such transaction: process {pid} ({application}, user {user}{began}; "
        f"SELECT pg_terminate_backend({pid}) ends it)"
    )


def _missing(connection: Connection) -> list[str]:
    """Return the tables and columns that this code names and the ledger does not have."""
    from include.ledger.models import Base

    found = {
        tuple(row)
        for row in connection.execute(
            text("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()")
        )
    }
    tables = {table for table, _ in found}
    return [
        *(table for table in Base.metadata.tables if table not in tables),
        *(
            f"{table.name}.{column.name}"
            for table in Base.metadata.sorted_tables
            for column in table.columns
            if table.name in tables and (table.name, column.name) not in found
        ),
    ]


def _incomplete(what: str) -> TidemarkError:
    return TidemarkError(
        f"the ledger lacks what earlier migrations make: {what}; nothing was migrated",
        remedy="restore PostgreSQL from a copy and migrate that; without one, make them as include/ledger/models.py "
        "declares them",
    )


def upgrade(connection: Connection, version: str = "head") -> None:
    """Apply the migrations (Alembic) up to a version in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, version)
