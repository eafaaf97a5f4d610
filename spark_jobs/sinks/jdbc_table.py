"""A speed view's rows in a PostgreSQL table: one row per key, upserted in one transaction per micro-batch.

The table stands in the database `serving` and is called `<pipeline>_<view>`: the key's columns (a window as
`window_start` and `window_end`), the measures, and `version`. A null in a key is a value of its own. The same
transaction moves the view's marker in `tidemark_versions`, so a micro-batch that is replayed, or one of a driver that
lost its lease, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import sql
from psycopg2.extras import execute_values
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StructType

from include.crash_points import crash_point
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.pipelines.spec import AdditiveView, Pipeline
from include.settings import settings
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.values import key_columns

_TYPES = {
    "string": "text",
    "boolean": "boolean",
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamptz",
}
_ROWS_A_STATEMENT = 1000
_MARKERS = """
    CREATE TABLE IF NOT EXISTS tidemark_versions (
        table_name text PRIMARY KEY, version bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now())
"""


@dataclass(frozen=True)
class JdbcTableTarget:
    """Upserts the changed keys of a micro-batch: effectively once, whatever is killed."""

    pipeline: Pipeline
    view: AdditiveView

    @property
    def table(self) -> str:
        """The table's name."""
        return self.pipeline.view_table(self.view)

    def write(self, values: DataFrame, version: int) -> None:
        """Upsert the values. Raises ServiceUnreachable when PostgreSQL does not answer."""
        self._merge(values, version, replace=False)

    def replace(self, values: DataFrame, version: int) -> None:
        """Replace the table's rows by the values."""
        self._merge(values, version, replace=True)

    def _merge(self, values: DataFrame, version: int, *, replace: bool) -> None:
        columns, types = self._columns()
        with _transaction() as cursor:
            self._create(cursor, columns, types)
            if not self._advance(cursor, version):
                return
            names = sql.SQL(", ").join(map(sql.Identifier, [*columns, "version"]))
            table, staged = sql.Identifier(self.table), sql.Identifier(f"staged_{self.table}"[:63])
            cursor.execute(
                sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0").format(staged, names, table)
            )
            insert = sql.SQL("INSERT INTO {} ({}) VALUES %s").format(staged, names).as_string(cursor)
            rows = values.select(*self._flat()).toLocalIterator()
            stored = ((*map(_storable, row), version) for row in rows)
            execute_values(cursor, insert, stored, page_size=_ROWS_A_STATEMENT)
            if replace:
                cursor.execute(sql.SQL("DELETE FROM {}").format(table))
            cursor.execute(self._upsert(columns, names, table, staged))
            crash_point("jdbc_staged")
        crash_point("jdbc_committed")

    def _upsert(
        self, columns: Sequence[str], names: sql.Composable, table: sql.Composable, staged: sql.Composable
    ) -> sql.Composable:
        measured = [*self.view.measures, "version"]
        key = [name for name in columns if name not in self.view.measures]
        # In the order of the key, so that concurrent writers wait for each other instead of deadlocking.
        return sql.SQL(
            "INSERT INTO {table} ({names}) SELECT DISTINCT ON ({key}) {names} FROM {staged} ORDER BY {key} "
            "ON CONFLICT ({key}) DO UPDATE SET {changes}"
        ).format(
            table=table,
            names=names,
            staged=staged,
            key=sql.SQL(", ").join(map(sql.Identifier, key)),
            changes=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in measured),
        )

    def _advance(self, cursor: Any, version: int) -> bool:
        """Move the marker to the version. Return False when it is there already."""
        cursor.execute(
            "INSERT INTO tidemark_versions AS v (table_name, version) VALUES (%s, %s) ON CONFLICT (table_name) "
            "DO UPDATE SET version = EXCLUDED.version, written_at = now() WHERE v.version < EXCLUDED.version "
            "RETURNING version",
            (self.table, version),
        )
        return cursor.fetchone() is not None

    def _create(self, cursor: Any, columns: Sequence[str], types: Sequence[str]) -> None:
        cursor.execute(
            "SELECT to_regclass('tidemark_versions'), to_regclass(%(table)s), "
            "(SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'p')",
            {"table": self.table},
        )
        markers, table, primary_key = cursor.fetchone()
        if markers and table and not primary_key:
            return
        # IF NOT EXISTS fails when two create at once: this lock lets one in after the other.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark serving'))")
        cursor.execute(_MARKERS)
        key = [name for name in columns if name not in self.view.measures]
        if primary_key:
            self._let_nulls_in(cursor, key, primary_key)
            return
        cursor.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, version bigint NOT NULL, {})").format(
                sql.Identifier(self.table),
                sql.SQL(", ").join(
                    sql.SQL("{} {} {}").format(
                        sql.Identifier(name), sql.SQL(kind), sql.SQL("" if name in key else "NOT NULL")
                    )
                    for name, kind in zip(columns, types, strict=True)
                ),
                _unique(key),
            )
        )

    def _let_nulls_in(self, cursor: Any, key: Sequence[str], primary_key: str) -> None:
        """Give a table that was made with a primary key, which takes no nulls, the key that tables have now."""
        cursor.execute(
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}, {}, ADD {}").format(
                sql.Identifier(self.table),
                sql.Identifier(primary_key),
                sql.SQL(", ").join(
                    sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(name)) for name in key
                ),
                _unique(key),
            )
        )

    def _columns(self) -> tuple[list[str], list[str]]:
        """Return the names and PostgreSQL types of key and measures."""
        declared = struct_of(self.view.columns)
        names, types = [], []
        for name in (*self.view.key, *self.view.measures):
            kind = declared[name].dataType
            if isinstance(kind, StructType):
                names += [f"{name}_{part.name}" for part in kind.fields]
                types += [self._type(part.dataType, name) for part in kind.fields]
            else:
                names.append(name)
                types.append(self._type(kind, name))
        return names, types

    def _type(self, kind: DataType, column: str) -> str:
        if isinstance(kind, DecimalType):
            return f"numeric({kind.precision}, {kind.scale})"
        if (name := kind.simpleString()) in _TYPES:
            return _TYPES[name]
        raise UsageError(
            f"column {column} of the view {self.view.name} is {name}, which its table cannot hold",
            remedy=f"one of {', '.join(_TYPES)}, decimal, or a struct of these",
            pipeline=self.pipeline.name,
        )

    def _flat(self) -> list[Column]:
        """Return the values of `_columns`, out of key and measures."""
        declared = struct_of(self.view.columns)
        flat: list[Column] = []
        for name, column in zip(self.view.key, key_columns(self.view, F.col("key")), strict=True):
            kind = declared[name].dataType
            flat += [column[part] for part in kind.names] if isinstance(kind, StructType) else [column]
        return [each.alias(f"c{n}") for n, each in enumerate([*flat, *(F.col(name) for name in self.view.measures)])]


def _unique(key: Sequence[str]) -> sql.Composable:
    # Not a primary key, which takes no nulls.
    return sql.SQL("UNIQUE NULLS NOT DISTINCT ({})").format(sql.SQL(", ").join(map(sql.Identifier, key)))


def _storable(value: object) -> object:
    # PostgreSQL's text cannot hold this one character; its symbol replaces it.
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value


@contextmanager
def _transaction() -> Iterator[Any]:
    url = settings().database("serving")
    try:
        connection = psycopg2.connect(
            url.set(drivername="postgresql").render_as_string(hide_password=False),
            connect_timeout=10,
            options="-c timezone=UTC",
        )
        try:
            with connection, connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise ServiceUnreachable(
            f"PostgreSQL at {url.host}:{url.port}, database serving: {str(error).strip().splitlines()[0]}",
            remedy="./tidemark status",
        ) from None
    except psycopg2.Error as error:
        raise TidemarkError(
            f"PostgreSQL at {url.host}:{url.port}, database serving: {str(error).strip().splitlines()[0]}",
            remedy="nothing of the micro-batch was written; mend the table and start again",
        ) from None
