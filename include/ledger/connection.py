"""The connection to the ledger by the database's own driver, with the options of all of Tidemark's connections to it.

Commands that only read use plain SQL here: importing SQLAlchemy takes longer than their queries. Code that writes, or
runs for longer than a command, goes through `include.ledger.database`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.errors import UndefinedColumn, UndefinedTable
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ, connection, cursor

from include.errors import ServiceUnreachable, TidemarkError, UsageError, one_line
from include.ledger.patience import SHARE, tried_again
from include.settings import settings

STATEMENT_SECONDS = 300
"""How long a statement may take."""

IDLE_SECONDS = 120
"""How long a transaction may be open without a statement; then it is ended, and its locks are free."""

LOCK_SECONDS = IDLE_SECONDS + 30
"""How long a statement waits for a lock that another transaction holds: longer than a stopped process can hold one."""

SILENT_SECONDS = 30
"""How long the other side of a connection may leave probes unanswered; then its host counts as vanished."""


def driver_options() -> dict[str, Any]:
    """Return the options that every connection is opened with; see the constants above."""
    return {
        "connect_timeout": 10,
        "options": server_options(),
        # By it an error tells which process holds a lock.
        "fallback_application_name": f"tidemark {os.getpid()}@{os.uname().nodename}",
        **_client_options(),
    }


def connect(seconds: float = 0.0) -> connection:
    """Connect to the ledger; wait `seconds` for a database that is away, or as long as this process is patient
    (`include/ledger/patience.py`).

    Raises psycopg2.OperationalError.
    """
    address, options = settings().database_uri("ledger"), driver_options()
    return tried_again(lambda: psycopg2.connect(address, **options), psycopg2.OperationalError, seconds)


def check_answers(seconds: int) -> None:
    """Raise ServiceUnreachable when PostgreSQL accepts no connection within so many seconds: it is down, or hangs."""
    options = {**driver_options(), "connect_timeout": seconds}
    try:
        psycopg2.connect(settings().database_uri("ledger"), **options).close()
    except psycopg2.OperationalError as error:
        raise does_not_answer(error) from error


def await_ledger() -> None:
    """Wait for a ledger that is away for seconds, as a stream does: before a step that holds nothing in it yet.

    Only the connection is tried again. What a step has begun is not, because its locks end with its connections.
    Raises ServiceUnreachable, and UsageError when newer code has migrated the ledger.
    """
    try:
        with closing(connect(SHARE * settings().lease_seconds)) as connected, connected.cursor() as asked:
            _check_version(asked)
    except psycopg2.OperationalError as error:
        raise does_not_answer(error) from error
    except UndefinedTable as error:
        raise of_another_version(error) from error


def check_version() -> None:
    """Raise UsageError when newer code has migrated the ledger: this code does not know what it would leave out."""
    with reading() as asked:
        _check_version(asked)


def _check_version(asked: cursor) -> None:
    asked.execute("SELECT version_num FROM alembic_version")
    for (migrated_to,) in asked.fetchall():
        check_known(migrated_to)


def check_known(migrated_to: str) -> None:
    """Raise UsageError when this code has no migration of that number."""
    known = _known_migrations()
    # Where only a driver's code was shipped, nothing is known.
    if known and migrated_to not in known:
        raise UsageError(
            f"the ledger was migrated by newer code ({migrated_to}; this code knows up to {max(known)})",
            remedy="deploy that code again, or restore the copy of PostgreSQL from before the upgrade",
        )


def newest_migration() -> str:
    """Return the number of this code's last migration."""
    return max(_known_migrations())


@cache
def _known_migrations() -> frozenset[str]:
    """Return the numbers of this code's migrations, with which their files' names begin: Alembic's import is slow."""
    files = (Path(__file__).parent / "migrations" / "versions").glob("[0-9]*.py")
    return frozenset(file.name.partition("_")[0] for file in files)


def server_options(*, but: Collection[str] = ()) -> str:
    """Return the options that PostgreSQL applies, without those named; their timeouts end what blocks others."""
    silent = SILENT_SECONDS * 1000
    options = {
        "timezone": "UTC",
        # The ledger's few pages are in memory: at the default price of a random page, PostgreSQL reads a table of some
        # thousand micro-batches whole where an index leads to twenty.
        "random_page_cost": "1.1",
        "lock_timeout": f"{LOCK_SECONDS}s",
        "statement_timeout": f"{STATEMENT_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
        # Whatever the database's own is: the connection of a lock that is held for hours is idle all the time.
        "idle_session_timeout": "0",
        "tcp_keepalives_idle": f"{SILENT_SECONDS // 3}s",
        "tcp_keepalives_interval": f"{SILENT_SECONDS // 6}s",
        "tcp_keepalives_count": "4",
        "tcp_user_timeout": f"{silent}ms",
        # A statement that waits for a lock also ends when its client is gone.
        "client_connection_check_interval": f"{SILENT_SECONDS // 3}s",
    }
    return " ".join(f"-c {name}={value}" for name, value in options.items() if name not in but)


def _client_options() -> dict[str, int]:
    """Return the options of this side of the connection (libpq): a vanished server is noticed as soon."""
    return {
        "keepalives": 1,
        "keepalives_idle": SILENT_SECONDS // 3,
        "keepalives_interval": SILENT_SECONDS // 6,
        "keepalives_count": 4,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
    }


_ASKED: ContextVar[cursor | None] = ContextVar("_ASKED", default=None)
"""The cursor of the transaction that this thread reads in."""


@contextmanager
def reading() -> Iterator[cursor]:
    """Query the ledger in one transaction that writes nothing; all its statements see one snapshot.

    A block within such a block uses the same transaction: a command that calls several functions needs one
    connection, and their answers agree.

    Raise ServiceUnreachable when PostgreSQL does not answer or goes away, TidemarkError when the ledger's tables are
    of another version of the code.
    """
    if (already := _ASKED.get()) is not None:
        yield already
        return
    try:
        with closing(connect()) as connected:
            connected.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
            with connected.cursor() as asked, asking_by(asked):
                yield asked
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise does_not_answer(error) from error
    except (UndefinedTable, UndefinedColumn) as error:
        raise of_another_version(error) from error


@contextmanager
def asking_by(asked: cursor) -> Iterator[None]:
    """Let `reading` use this cursor during the block, in whatever transaction it is."""
    noted = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(noted)


def does_not_answer(error: BaseException | str) -> ServiceUnreachable:
    """Return the error of a database that does not answer, with its address and without its password."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ServiceUnreachable(f"PostgreSQL at {settings().database_host()}: {reason}", remedy=remedy_of(reason))


def remedy_of(reason: str) -> str:
    """Return what to do about a database that fails for a reason, its first line: the values follow in others."""
    is_full = reason.rstrip().endswith("No space left on device")
    return f"{'make room on its disk' if is_full else './tidemark status'}; ./tidemark up postgres"


def of_another_version(error: BaseException) -> TidemarkError:
    """Return the error of tables that another version of the code has made."""
    return TidemarkError(
        f"the ledger's tables are of another version of the code: {one_line(str(error))}",
        remedy="./tidemark up postgres brings them to this one",
    )
