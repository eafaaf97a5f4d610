"""The stream's table of a served view: only the stream alters it, and only a generation's base gives it another key.

A driver, or an interval that is being built, goes on with the code that it began with. So a table with rows that was
made by another declaration is left alone by all but the stream that has moved the view's marker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor

from include.errors import TidemarkError, UsageError
from include.serving.dependents import check_no_dependents
from include.serving.shape import Column, Shape, names, quoted

_FOUND = """
    SELECT (SELECT json_object_agg(attname, format_type(atttypid, atttypmod)) FROM pg_attribute
            WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped),
        ARRAY(SELECT attname::text FROM pg_attribute a JOIN pg_constraint c ON c.conrelid = a.attrelid
            WHERE a.attrelid = to_regclass(%(table)s) AND c.contype IN ('p', 'u') AND a.attnum = ANY(c.conkey)),
        (SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'p'),
        EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = to_regclass(%(table)s) AND attnotnull AND attname = ANY(%(measures)s::name[])),
        obj_description(to_regclass('proved.' || %(table)s), 'pg_class'),
        obj_description(to_regclass('live.' || %(table)s), 'pg_class')
"""

_FORMATTED = {"timestamptz": "timestamp with time zone"}
"""Types by the names that PostgreSQL's catalog gives them, where these differ."""


@dataclass(frozen=True)
class Found:
    """What PostgreSQL has of a served view."""

    columns: Mapping[str, str]
    """Of the stream's table, with their types; empty without a table."""
    key: Collection[str]
    primary_key: str | None
    """Name of the constraint of a table that was made with a primary key, which takes no nulls."""
    refuses_nulls: bool
    """Whether a measure takes no nulls, as tables were made once; a sum of nulls is null."""
    proved: str | None
    """Digest of what the table of partial values was made by; None without that table."""
    view: str | None
    """Digest of the view that readers ask; None without it."""


def find(asked: cursor, shape: Shape) -> Found:
    """Look at the view's relations; of a view that the stream keeps no table of, at the others only."""
    asked.execute(_FOUND, {"table": shape.table, "measures": [each.name for each in shape.measures]})
    columns, key, primary_key, refuses_nulls, proved, view = asked.fetchone() or (None,) * 6
    if not shape.has_live:
        return Found({}, (), None, False, proved, view)
    return Found(columns or {}, key, primary_key, refuses_nulls, proved, view)


def has_other_key(shape: Shape, found: Found) -> bool:
    """Return whether there is a table with another key, or a key of other types."""
    is_same = set(found.key) == {each.name for each in shape.keys} and not _differing(shape.keys, found.columns)
    return bool(found.columns) and not is_same


def undeclared(shape: Shape, found: Found) -> list[str]:
    """Return the columns of the table that are not declared, under no name."""
    known = {
        shape.version,
        *(each.name for each in shape.columns),
        *(old for each in shape.formerly.values() for old in each),
    }
    return sorted(found.columns.keys() - known)


def stored_names(shape: Shape, found: Found) -> dict[str, str]:
    """Return by which name the table has each measure, without those that it does not have."""
    names = {each.name: (each.name, *shape.formerly.get(each.name, ())) for each in shape.measures}
    there = {name: next((each for each in known if each in found.columns), "") for name, known in names.items()}
    return {name: stored for name, stored in there.items() if stored}


def is_current(shape: Shape, found: Found, *, exactly: bool) -> bool:
    """Return whether the stream can write the table; `exactly` when it may have no other columns."""
    if not found.columns or found.primary_key or found.refuses_nulls or has_other_key(shape, found):
        return False
    others = found.columns.keys() - {shape.version, *(each.name for each in shape.columns)}
    return not _differing(shape.measures, found.columns) and not (exactly and others)


def is_gone(asked: cursor, shape: Shape) -> bool:
    """Return whether the stream has written the table, and it is no longer there (after `ensure_states`)."""
    asked.execute(
        "SELECT FROM tidemark_versions WHERE table_name = %s AND to_regclass(%s) IS NULL", [shape.table, shape.table]
    )
    return shape.only_changes and asked.fetchone() is not None


def lacks_rows(asked: cursor, shape: Shape, written: int | None) -> bool:
    """Return whether the table is gone or older than `written`, the version that the ledger has of its stream.

    The ledger is to be read first: the stream writes it last.
    """
    if written is None or not shape.only_changes:
        return False
    asked.execute("SELECT to_regclass(%s) IS NULL OR to_regclass('tidemark_versions') IS NULL", [shape.table])
    if asked.fetchone() == (True,):
        return True
    asked.execute("SELECT FROM tidemark_versions WHERE table_name = %s AND version >= %s", [shape.table, written])
    return asked.fetchone() is None


def lost(shape: Shape) -> UsageError:
    """Return the error of a table that `is_gone` or `lacks_rows`: its stream would go on with keys that change."""
    return UsageError(
        f"the table {shape.table} of serving lacks rows that the stream has written: it was dropped, or put back from "
        "an older copy",
        remedy=f"let all of them be counted and written again: {new_generation(shape)}",
        pipeline=shape.pipeline,
    )


def make_current(asked: cursor, shape: Shape, found: Found, *, as_base: bool) -> None:
    """Create the stream's table, or give one that was made by another declaration the columns of this one.

    The rows stay, except when a generation's base replaces them. Only that gives a table with rows another key: raises
    TidemarkError otherwise, and when objects of others depend on columns that change.
    """
    if has_other_key(shape, found):
        if as_base:
            _drop(asked, shape)
        elif not drop_empty(asked, shape):
            raise TidemarkError(
                f"{other_key(shape, found)}; nothing of the micro-batch was written",
                remedy=new_generation(shape),
                pipeline=shape.pipeline,
            )
    elif found.columns:
        _adapt(asked, shape, found, as_base=as_base)
        return
    create(asked, shape)


def other_key(shape: Shape, found: Found) -> str:
    """Return in words how the table's key differs from the declared one."""
    there = [f"{name} {kind}" for name, kind in found.columns.items() if name in found.key]
    declared = [f"{each.name} {_catalog_type(each)}" for each in shape.keys]
    return f"the table {shape.table} has the key {', '.join(there)}, declared is {', '.join(declared)}"


def new_generation(shape: Shape) -> str:
    """Return the command that makes the table anew."""
    return f'./tidemark new-generation {shape.pipeline} --reason "…"'


def drop_empty(asked: cursor, shape: Shape) -> bool:
    """Drop the table, and the view on it, if it has no rows; return whether it had none.

    Raises TidemarkError when objects of others depend on either.
    """
    if is_empty(asked, shape):
        # A stream may write its first rows meanwhile.
        asked.execute(f"LOCK TABLE {quoted(shape.table)} IN ACCESS EXCLUSIVE MODE")
        if is_empty(asked, shape):
            _drop(asked, shape)
            return True
    return False


def _drop(asked: cursor, shape: Shape) -> None:
    _drop_view(asked, shape)
    asked.execute(f"DROP TABLE {quoted(shape.table)}")


def _drop_view(asked: cursor, shape: Shape) -> None:
    check_no_dependents(asked, shape)
    asked.execute(f"DROP VIEW IF EXISTS live.{quoted(shape.table)}")


def is_empty(asked: cursor, shape: Shape) -> bool:
    """Return whether the stream's table has no rows."""
    asked.execute(f"SELECT NOT EXISTS (SELECT FROM {quoted(shape.table)})")
    return asked.fetchone() == (True,)


def create(asked: cursor, shape: Shape) -> None:
    """Create the stream's table."""
    table = quoted(shape.table)
    columns = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.columns)
    asked.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, {shape.version} bigint NOT NULL, {_unique(shape)})")
    if shape.is_total:
        return
    # PostgreSQL chooses a name that is free: tables and indexes share their names, and a view may have this one.
    asked.execute(f"CREATE INDEX ON {table} ({quoted(shape.start)})")


def _adapt(asked: cursor, shape: Shape, found: Found, *, as_base: bool) -> None:
    table, there = quoted(shape.table), found.columns
    if as_base:
        # Not to be converted: they are replaced.
        asked.execute(f"DELETE FROM {table}")
    if found.primary_key:
        asked.execute(f"ALTER TABLE {table} DROP CONSTRAINT {quoted(found.primary_key)}, ADD {_unique(shape)}")
        _take_nulls(asked, shape.table, shape.keys)
    stored = stored_names(shape, found)
    others = (
        there.keys() - {shape.version, *stored.values(), *(each.name for each in shape.columns)} if as_base else set()
    )
    retyped = {
        each.name for each in shape.measures if there.get(stored.get(each.name, "")) not in (None, _catalog_type(each))
    }
    if others or retyped:
        # It holds on to columns and their types.
        _drop_view(asked, shape)
    for each in _differing(shape.measures, there):
        name = quoted(each.name)
        if each.name not in stored:
            asked.execute(f"ALTER TABLE {table} ADD COLUMN {name} {each.kind}")
            continue
        if stored[each.name] != each.name:
            asked.execute(f"ALTER TABLE {table} RENAME COLUMN {quoted(stored[each.name])} TO {name}")
        if each.name in retyped:
            asked.execute(f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {each.kind}")
    if found.refuses_nulls:
        _take_nulls(asked, shape.table, shape.measures)
    for other in sorted(others):
        asked.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(other)}")


def _take_nulls(asked: cursor, table: str, columns: Iterable[Column]) -> None:
    nulls = ", ".join(f"ALTER COLUMN {quoted(each.name)} DROP NOT NULL" for each in columns)
    asked.execute(f"ALTER TABLE {quoted(table)} {nulls}")


def _unique(shape: Shape) -> str:
    # Not a primary key, which takes no nulls.
    return f"UNIQUE NULLS NOT DISTINCT ({names(each.name for each in shape.keys)})"


def _differing(columns: Iterable[Column], there: Mapping[str, str]) -> list[Column]:
    return [each for each in columns if there.get(each.name) != _catalog_type(each)]


def _catalog_type(column: Column) -> str:
    return _FORMATTED.get(column.kind, column.kind)
