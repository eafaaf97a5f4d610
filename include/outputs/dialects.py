"""What differs between the databases that outputs write: connecting, types, and how a row replaces itself."""

from __future__ import annotations

import math
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.errors import IdleInTransactionSessionTimeout, ProgramLimitExceeded
from psycopg2.extras import execute_values

from include.catalog.columns import kind_of
from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.outputs.connection import Database
from include.pipelines.spec.ddl import Field
from include.serving.shape import DECIMALS, PLAIN_TYPES
from include.serving.stored import storable

_NULL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""The null character as JSON writes it, after backslashes that stand for themselves."""

NESTED = ("STRUCT", "ARRAY", "MAP", "VARIANT")
"""Kinds of columns that are kept as JSON."""

ROWS_A_STATEMENT = 1000

_SECONDS = 300
"""How long a statement may take, and how long a transaction may wait for its next statement."""


class Dialect(ABC):
    """A database of one kind."""

    types: Mapping[str, str]
    """Types of columns that are not whole numbers, dates or decimals, by Spark's names."""
    topic: str
    """Type of a topic's name and id in the primary key."""
    here: str
    """The schema that tables are made in, as an expression."""
    quote: str
    unfit: tuple[type[Exception], ...]
    """The error of a value that does not fit its column."""
    failed: type[Exception]
    """Root of the driver's errors."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection in UTC; errors are the driver's."""

    @abstractmethod
    def upsert(self, asked: Any, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Write rows by their keys."""

    @abstractmethod
    def is_away(self, error: Exception) -> bool:
        """Return whether the database did not answer, rather than refuse."""

    def is_unfit(self, error: Exception) -> bool:
        """Return whether a value does not fit its column, or breaks a condition of the table."""
        return isinstance(error, self.unfit)

    def cannot_hold(self, row: Sequence[object]) -> str:
        """Return why no statement can hold the row; empty when one can."""
        return ""

    def storable(self, value: object, *, is_json: bool) -> object:
        """Return a value that the database can hold."""
        return value

    def quoted(self, name: str) -> str:
        """Return a name as an identifier."""
        return f"{self.quote}{name.replace(self.quote, 2 * self.quote)}{self.quote}"

    def names(self, columns: Sequence[str]) -> str:
        """Return names as a list of identifiers."""
        return ", ".join(map(self.quoted, columns))

    @abstractmethod
    def retyped(self, column: str, kind: str) -> str:
        """Return the action of `ALTER TABLE` that gives a column another type."""

    def type_of(self, field: Field) -> str:
        """Return the type of a column: JSON for nested ones, text for kinds that have no other."""
        kind = kind_of(field)
        if kind in DECIMALS:
            precision, scale = (*(field.arguments or (10,)), 0)[:2]
            return f"decimal({precision},{scale})"
        if kind in NESTED:
            return self.types["NESTED"]
        return PLAIN_TYPES.get(kind) or self.types.get(kind, self.types["STRING"])

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction and yield its cursor: committed at the end, rolled back by an exception.

        Raises ServiceUnreachable when the database does not answer, TidemarkError when it refuses.
        """
        try:
            connection = self.connect()
            try:
                with connection.cursor() as asked:
                    yield asked
                connection.commit()
            finally:
                connection.close()
        except self.failed as error:
            said = f"{self.database}: {self.said(error)}"
            if self.is_away(error):
                raise ServiceUnreachable(said, remedy="start it, or correct the connection") from None
            raise TidemarkError(said, remedy="repair the table, or correct the connection or the output") from None

    def said(self, error: Exception) -> str:
        """Return the driver's message, without the password."""
        said = one_line(str(error))
        return said.replace(self.database.password, "***") if len(self.database.password) > 2 else said


class Postgres(Dialect):
    """PostgreSQL."""

    types: Mapping[str, str] = {
        "STRING": "text",
        "FLOAT": "double precision",
        "DOUBLE": "double precision",
        "TIMESTAMP": "timestamptz",
        "TIMESTAMP_NTZ": "timestamp",
        "BINARY": "bytea",
        "NESTED": "jsonb",
    }
    topic = "text"
    here = "current_schema()"
    quote = '"'
    # Of the last kind are values that are too long for an index of the table.
    unfit = (psycopg2.DataError, psycopg2.IntegrityError, ProgramLimitExceeded)
    failed = psycopg2.Error

    def connect(self) -> Any:
        """Open a connection."""
        at = self.database
        more: dict[str, Any] = dict(at.parameters)
        return psycopg2.connect(
            host=at.host,
            port=at.port,
            dbname=at.name,
            user=at.user,
            password=at.password,
            connect_timeout=10,
            # A host that vanishes, or a process that is stopped in its transaction, does not block others for long.
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=60_000,
            options=f"-c timezone=UTC -c lock_timeout=30s -c statement_timeout={_SECONDS}s "
            f"-c idle_in_transaction_session_timeout={_SECONDS}s",
            **more,
        )

    def upsert(self, asked: Any, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Write rows by their keys."""
        others = [name for name in columns if name not in keys]
        changes = ", ".join(f"{self.quoted(name)} = EXCLUDED.{self.quoted(name)}" for name in others)
        into = f"INSERT INTO {self.quoted(table)} ({self.names(columns)})".replace("%", "%%")
        changed = f"DO UPDATE SET {changes}".replace("%", "%%") if others else "DO NOTHING"
        conflict = f"ON CONFLICT ({self.names(keys)}) {changed}"
        execute_values(asked, f"{into} VALUES %s {conflict}", rows, page_size=ROWS_A_STATEMENT)

    def retyped(self, column: str, kind: str) -> str:
        """Return the action of `ALTER TABLE` that gives a column another type."""
        return f"ALTER COLUMN {self.quoted(column)} TYPE {kind}"

    def storable(self, value: object, *, is_json: bool) -> object:
        """Return a value that PostgreSQL can hold: a symbol stands for the null character."""
        if is_json and isinstance(value, str):
            return _NULL.sub(r"\1\\u2400", value)
        return storable(value)

    def is_away(self, error: Exception) -> bool:
        """Return whether PostgreSQL did not answer."""
        away = psycopg2.OperationalError | psycopg2.InterfaceError | IdleInTransactionSessionTimeout
        return isinstance(error, away) and not isinstance(error, ProgramLimitExceeded)


class Mariadb(Dialect):
    """MariaDB, and MySQL."""

    types: Mapping[str, str] = {
        "STRING": "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "FLOAT": "double",
        "DOUBLE": "double",
        "TIMESTAMP": "datetime(6)",
        "TIMESTAMP_NTZ": "datetime(6)",
        "BINARY": "longblob",
        "NESTED": "json",
    }
    topic = "varchar(249) CHARACTER SET ascii COLLATE ascii_bin"
    here = "database()"
    quote = "`"
    _conditions = frozenset({1292, 1366, 1411, 3140, 3819, 4025})
    """Numbers of errors about a value that the driver does not classify as such."""
    _away = frozenset({1040, 1053, 1205, 1213, 2002, 2003, 2006, 2013})

    def __init__(self, database: Database) -> None:
        from pymysql import err

        super().__init__(database)
        self.unfit = (err.DataError, err.IntegrityError)
        self.failed = err.MySQLError
        self._most = 0

    def connect(self) -> Any:
        """Open a connection. A value that does not fit is an error, and never truncated."""
        import pymysql

        at = self.database
        connection = pymysql.connect(
            host=at.host,
            port=at.port,
            database=at.name,
            user=at.user,
            password=at.password,
            charset="utf8mb4",
            connect_timeout=10,
            read_timeout=_SECONDS,
            write_timeout=_SECONDS,
            init_command="SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE', "
            f"wait_timeout = {_SECONDS}, innodb_lock_wait_timeout = 30",
            ssl=self._tls(),
            ssl_disabled=self.database.parameters.get("sslMode") == "disable",
        )
        with connection.cursor() as asked:
            asked.execute("SELECT @@max_allowed_packet")
            [self._most] = asked.fetchone() or [0]
        return connection

    def _tls(self) -> ssl.SSLContext | None:
        """Return how TLS is verified; None when it is not verified, and used only if the server offers it."""
        mode = self.database.parameters.get("sslMode", "disable")
        if mode == "disable":
            return None
        context = ssl.create_default_context(cafile=self.database.parameters.get("serverSslCert"))
        context.check_hostname = mode == "verify-full"
        context.verify_mode = ssl.CERT_NONE if mode == "trust" else ssl.CERT_REQUIRED
        return context

    def upsert(self, asked: Any, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Write rows by their keys."""
        # A key that is set to itself: without other columns nothing changes.
        others = [name for name in columns if name not in keys] or [keys[0]]
        changes = ", ".join(f"{self.quoted(name)} = VALUES({self.quoted(name)})" for name in others)
        into = f"INSERT INTO {self.quoted(table)} ({self.names(columns)})".replace("%", "%%")
        values = ", ".join(["%s"] * len(columns))
        changed = f"ON DUPLICATE KEY UPDATE {changes}".replace("%", "%%")
        asked.executemany(f"{into} VALUES ({values}) {changed}", rows)

    def retyped(self, column: str, kind: str) -> str:
        """Return the action of `ALTER TABLE` that gives a column another type."""
        return f"MODIFY COLUMN {self.quoted(column)} {kind}"

    def cannot_hold(self, row: Sequence[object]) -> str:
        """Return why no statement can hold the row: NaN or infinity, or more bytes than a packet has."""
        if any(isinstance(each, float) and not math.isfinite(each) for each in row):
            return "it has a number that is NaN or infinite"
        # Each byte may be escaped.
        size = sum(2 * _bytes(each) for each in row)
        return f"up to {size} bytes as a statement, max_allowed_packet is {self._most}" if size > self._most else ""

    def is_unfit(self, error: Exception) -> bool:
        """Return whether a value does not fit its column."""
        return super().is_unfit(error) or _number(error) in self._conditions

    def is_away(self, error: Exception) -> bool:
        """Return whether MariaDB did not answer, or gave up waiting for somebody's lock."""
        return _number(error) in self._away


def _bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes | bytearray) else 32


def _number(error: Exception) -> int:
    """Return the number of MariaDB's error; 0 without one."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def dialect_of(database: Database) -> Dialect:
    """Return the database's dialect."""
    return Postgres(database) if database.kind == "postgresql" else Mariadb(database)
