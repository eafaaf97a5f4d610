"""The tables and the view of a served view, created if they are missing or of another declaration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from psycopg2.errors import InvalidTableDefinition, LockNotAvailable
from psycopg2.extensions import cursor

from include.serving import transaction
from include.serving.dependents import changing, dependents, held_by, in_the_way
from include.serving.live_table import (
    Found,
    create,
    drop_empty,
    find,
    has_other_key,
    is_current,
    is_empty,
    is_gone,
    lost,
    make_current,
    new_generation,
    other_key,
    stored_names,
    undeclared,
)
from include.serving.query import answer
from include.serving.shape import Shape, names, quoted

Fill = Callable[[Shape, str], None]
"""Loads the registered partial values of a shape into a table."""

_STATES = """
    CREATE SCHEMA IF NOT EXISTS proved;
    CREATE SCHEMA IF NOT EXISTS live;
    CREATE TABLE IF NOT EXISTS tidemark_versions (
        table_name text PRIMARY KEY, version bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS proved.tidemark_intervals (
        table_name text, interval_id bigint, from_time timestamptz NOT NULL, to_time timestamptz NOT NULL,
        covers boolean NOT NULL, revision text NOT NULL, rows bigint NOT NULL,
        followed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (table_name, interval_id));
    COMMENT ON TABLE proved.tidemark_intervals IS 'Which revision of which interval the partial values are of';
    CREATE TABLE IF NOT EXISTS proved.tidemark_windows (
        table_name text, window_start timestamptz, window_end timestamptz, proved_at timestamptz,
        PRIMARY KEY (table_name, window_start, window_end));
    CREATE INDEX IF NOT EXISTS tidemark_windows_open ON proved.tidemark_windows (table_name) WHERE proved_at IS NULL;
    COMMENT ON TABLE proved.tidemark_windows IS 'Windows with partial values, and since when each is proved';
    CREATE TABLE IF NOT EXISTS proved.tidemark_positions (
        table_name text PRIMARY KEY, complete_until timestamptz, offsets jsonb NOT NULL,
        followed_at timestamptz NOT NULL DEFAULT now());
    ALTER TABLE proved.tidemark_positions ADD COLUMN IF NOT EXISTS settled_below bigint;
    COMMENT ON COLUMN proved.tidemark_positions.settled_below IS
        'Of a total: live values of older versions hold registered records only';
    COMMENT ON TABLE proved.tidemark_positions IS 'Until when, and below which offsets, everything is registered'
"""


_HAS_STATES = """
    SELECT to_regnamespace('live') IS NOT NULL AND to_regclass('tidemark_versions') IS NOT NULL
        AND to_regclass('proved.tidemark_intervals') IS NOT NULL AND to_regclass('proved.tidemark_windows') IS NOT NULL
        AND to_regclass('proved.tidemark_windows_open') IS NOT NULL AND EXISTS (
            SELECT FROM pg_attribute WHERE attrelid = to_regclass('proved.tidemark_positions')
            AND attname = 'settled_below' AND NOT attisdropped)
"""
"""Whether nothing of `_STATES` is missing."""


def ensure_states(asked: cursor) -> None:
    """Create the tables that hold markers, intervals, windows and positions of all views, or what they lack.

    To be called first in a transaction. The change has another one, which ends at once: its locks hold up all streams
    and readers, and a view's first load takes minutes.
    """
    if _has_states(asked):
        return
    with transaction("repair the table, then ./tidemark doctor --repair") as changing:
        # IF NOT EXISTS fails when two create at once: this lock lets one in after the other.
        changing.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark serving'))")
        if not _has_states(changing):
            changing.execute(_STATES)


def _has_states(asked: cursor) -> bool:
    asked.execute(_HAS_STATES)
    return asked.fetchone() == (True,)


def ensure_for_stream(asked: cursor, shape: Shape, *, as_base: bool) -> None:
    """Give the stream's table the declared columns; the caller has moved the view's marker (after `ensure_states`).

    Partial values and view are made if they are missing, with a generation's base, or with a table that had other
    columns. Otherwise they stay: a publication may know a later declaration than this driver.
    """
    found = find(asked, shape)
    if is_current(shape, found, exactly=as_base) and not _is_to_serve(shape, found, as_base=as_base):
        return
    lock_view(asked, shape)
    found = find(asked, shape)
    is_other = not is_current(shape, found, exactly=as_base)
    with changing(asked, shape):
        if is_other:
            make_current(asked, shape, found, as_base=as_base)
        if is_other or _is_to_serve(shape, found, as_base=as_base):
            # A view that is left as it is does not stop the stream: publications and `doctor` report it.
            _serve(asked, shape, find(asked, shape))


def _is_to_serve(shape: Shape, found: Found, *, as_base: bool) -> bool:
    proved, view = _digests(_as_stored(shape, found))
    if as_base:
        return (found.proved, found.view) != (proved, view)
    return found.proved is None or (found.view is None and found.proved == proved)


def ensure(asked: cursor, shape: Shape, fill: Fill | None = None) -> tuple[Shape, str]:
    """Create what the view lacks. Partial values of another declaration are replaced by a table that is filled first.

    The tables of all views are there (`ensure_states`).
    Return the shape with the stream's names for its measures. If the view cannot be changed, nothing is, and why is
    returned in words: the stream has written rows by another declaration that this one does not add to (this code may
    be older or newer), objects of others depend on the view, or an open transaction reads it.
    """
    found = find(asked, shape)
    stored = _as_stored(shape, found)
    if (found.proved, found.view) == _digests(stored) and bool(found.columns) == shape.has_live:
        return stored, ""
    lock_view(asked, shape)
    found = find(asked, shape)
    if difference := other_declaration(asked, shape, found):
        return shape, difference
    asked.execute("SAVEPOINT unchanged")
    try:
        with changing(asked, shape):
            return _ensure(asked, shape, found, fill)
    except LockNotAvailable:
        asked.execute("ROLLBACK TO SAVEPOINT unchanged")
        return shape, f"another transaction holds it{held_by(asked, shape)}"


def _ensure(asked: cursor, shape: Shape, found: Found, fill: Fill | None) -> tuple[Shape, str]:
    if has_other_key(shape, found):
        if others := dependents(asked, shape, "public", "proved", "live"):
            return shape, in_the_way(others)
        if not drop_empty(asked, shape):
            return shape, _by_generation(shape, other_key(shape, found))
        found = find(asked, shape)
    elif shape.has_live and is_gone(asked, shape):
        # An empty one would hide that its rows are missing.
        return shape, _by_generation(shape, lost(shape).message)
    if shape.has_live and not found.columns:
        create(asked, shape)
        found = find(asked, shape)
    return _serve(asked, shape, found, fill)


def other_declaration(asked: cursor, shape: Shape, found: Found) -> str:
    """Return how the declaration differs by which the stream's rows were written; empty if it can be served as well.

    It can with measures that were declared later, or renamed: until the stream has them, they are null, or read by
    their old names.
    """
    others = undeclared(shape, found) if found.proved not in (None, _digests(shape)[0]) else []
    if not (others or has_other_key(shape, found)) or is_empty(asked, shape):
        return ""
    if has_other_key(shape, found):
        return _by_generation(shape, other_key(shape, found))
    return _by_generation(shape, f"the table {shape.table} has the undeclared measures {', '.join(others)}")


def _by_generation(shape: Shape, difference: str) -> str:
    return f"{difference}; to go on with the code that is deployed: {new_generation(shape)}"


def kept_by_dependents(asked: cursor, shape: Shape, found: Found) -> str:
    """Return in words which objects of others keep the view as an earlier declaration made it; empty without any."""
    if found.proved in (None, _digests(shape)[0]):
        return ""
    others = dependents(asked, shape, "proved", "live")
    return in_the_way(others) if others else ""


def lock_view(asked: cursor, shape: Shape) -> None:
    """Wait until no other transaction changes the view's relations or its partial values."""
    asked.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"tidemark serves {shape.table}"])


def _as_stored(shape: Shape, found: Found) -> Shape:
    return replace(shape, stored=stored_names(shape, found)) if found.columns else shape


def _serve(asked: cursor, shape: Shape, found: Found, fill: Fill | None = None) -> tuple[Shape, str]:
    """Make partial values and view by the declaration, unless objects of others depend on columns that change.

    Return the shape with the stream's names for its measures, and in words why the view was left as it is.
    """
    shape = _as_stored(shape, found)
    proved, view = _digests(shape)
    if found.proved != proved:
        if others := dependents(asked, shape, "proved", "live"):
            return shape, in_the_way(others)
        _make_proved(asked, shape, proved, fill)
    if (found.proved, found.view) != (proved, view):
        name = f"live.{quoted(shape.table)}"
        if not _replace_view(asked, name, answer(shape)):
            if others := dependents(asked, shape, "live"):
                return shape, in_the_way(others)
            asked.execute(f"DROP VIEW {name}; CREATE VIEW {name} AS {answer(shape)}")
        asked.execute(f"COMMENT ON VIEW {name} IS %s", [view])
    return shape, ""


def _replace_view(asked: cursor, name: str, query: str) -> bool:
    """Make the view stand for the query. Return False, and change nothing, when it has columns that the query lacks."""
    asked.execute("SAVEPOINT viewed")
    try:
        asked.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")
    except InvalidTableDefinition:
        asked.execute("ROLLBACK TO SAVEPOINT viewed")
        return False
    return True


def _digests(shape: Shape) -> tuple[str, str]:
    """Return the digests of the table of partial values and of the view."""
    return _digest(_proved(shape)), _digest(answer(shape))


def _make_proved(asked: cursor, shape: Shape, digest: str, fill: Fill | None) -> None:
    """Replace the table of partial values, and drop the view on it.

    The new one is filled under another name: loading all history takes minutes, and readers of the former one wait only
    from its drop to the end of the transaction. Nothing is loaded while one of them keeps it from being dropped.
    """
    table, plain = f"proved.{quoted(shape.table)}", [each.name for each in shape.keys if each.path[1:] != ("end",)]
    name = quoted(f"tidemark_loading_{shape.table}"[:63])
    loading = f"proved.{name}"
    # A query names a key, with or without its window; a page of windows names these.
    first = sorted(plain, key=lambda name: name == shape.start)
    drop = f"DROP VIEW IF EXISTS live.{quoted(shape.table)}; DROP TABLE IF EXISTS {table}"
    if fill is not None:
        # The locks end with the savepoint: readers do not wait while it loads.
        asked.execute(f"SAVEPOINT droppable; {drop}; ROLLBACK TO SAVEPOINT droppable")
    asked.execute(f"CREATE TABLE {loading} ({_proved(shape)})")
    asked.execute(f"CREATE INDEX ON {loading} ({names(first)})")
    if not shape.is_total:
        asked.execute(f"CREATE INDEX ON {loading} ({quoted(shape.start)})")
    asked.execute(f"CREATE INDEX ON {loading} ({shape.interval})")
    asked.execute(f"COMMENT ON TABLE {loading} IS %s", [digest])
    if fill is not None:
        fill(shape, loading)
    asked.execute(drop)
    asked.execute(f"ALTER TABLE {loading} RENAME TO {quoted(shape.table)}")
    for state in ("intervals", "windows", "positions"):
        asked.execute(f"DELETE FROM proved.tidemark_{state} WHERE table_name = %s", [shape.table])


def _proved(shape: Shape) -> str:
    columns = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.columns)
    return f"{columns}, {shape.interval} bigint NOT NULL"


def _digest(definition: str) -> str:
    return f"Tidemark {hashlib.sha256(definition.encode()).hexdigest()[:16]}"
