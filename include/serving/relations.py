"""The tables and the view of a served view, created if they are missing or of another declaration.

A window of `live.<table>` is `proved` once `follow` has found it so, for good: then only the sum of the registered
partial values counts. Before that, the layer that holds more rows counts whole, by the first measure, which counts
rows: the two are never added up, so no row counts twice.

A key of a total, which has no window, is `proved` as long as intervals have registered all that its live value counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from psycopg2.extensions import cursor

from include.ledger.completeness.served import ALL
from include.serving import transaction
from include.serving.live_table import (
    Found,
    create,
    drop_empty,
    find,
    has_other_key,
    is_current,
    is_empty,
    make_current,
    other_key,
    stored_names,
    undeclared,
)
from include.serving.shape import Shape, names, quoted

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
    if is_other:
        make_current(asked, shape, found, as_base=as_base)
    if is_other or _is_to_serve(shape, found, as_base=as_base):
        _serve(asked, shape, find(asked, shape))


def _is_to_serve(shape: Shape, found: Found, *, as_base: bool) -> bool:
    proved, view = _digests(_as_stored(shape, found))
    if as_base:
        return (found.proved, found.view) != (proved, view)
    return found.proved is None or (found.view is None and found.proved == proved)


def ensure(asked: cursor, shape: Shape) -> tuple[Shape, str]:
    """Create what the view lacks; partial values of another declaration are dropped, `follow` loads them again.

    The tables of all views are there (`ensure_states`).
    Return the shape with the stream's names for its measures. If the stream has written rows by another declaration
    that this one does not add to, change nothing and return in words how it differs: this code may be older or newer.
    """
    found = find(asked, shape)
    stored = _as_stored(shape, found)
    if (found.proved, found.view) == _digests(stored) and bool(found.columns) == shape.has_live:
        return stored, ""
    lock_view(asked, shape)
    found = find(asked, shape)
    if difference := other_declaration(asked, shape, found):
        return shape, difference
    if has_other_key(shape, found):
        if not drop_empty(asked, shape):
            return shape, other_key(shape, found)
        found = find(asked, shape)
    if shape.has_live and not found.columns:
        create(asked, shape)
        found = find(asked, shape)
    return _serve(asked, shape, found), ""


def other_declaration(asked: cursor, shape: Shape, found: Found) -> str:
    """Return how the declaration differs by which the stream's rows were written; empty if it can be served as well.

    It can with measures that were declared later, or renamed: until the stream has them, they are null, or read by
    their old names.
    """
    others = undeclared(shape, found) if found.proved not in (None, _digests(shape)[0]) else []
    if not (others or has_other_key(shape, found)) or is_empty(asked, shape):
        return ""
    if has_other_key(shape, found):
        return other_key(shape, found)
    return f"the table {shape.table} has the undeclared measures {', '.join(others)}"


def lock_view(asked: cursor, shape: Shape) -> None:
    """Wait until no other transaction changes the view's relations or its partial values."""
    asked.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"tidemark serves {shape.table}"])


def _as_stored(shape: Shape, found: Found) -> Shape:
    return replace(shape, stored=stored_names(shape, found)) if found.columns else shape


def _serve(asked: cursor, shape: Shape, found: Found) -> Shape:
    """Make partial values and view by the declaration; return the shape with the stream's names for its measures."""
    shape = _as_stored(shape, found)
    proved, view = _digests(shape)
    if found.proved != proved:
        _make_proved(asked, shape, proved)
    if (found.proved, found.view) != (proved, view):
        name = f"live.{quoted(shape.table)}"
        asked.execute(f"DROP VIEW IF EXISTS {name}; CREATE VIEW {name} AS {answer(shape)}")
        asked.execute(f"COMMENT ON VIEW {name} IS %s", [view])
    return shape


def _digests(shape: Shape) -> tuple[str, str]:
    """Return the digests of the table of partial values and of the view."""
    return _digest(_proved(shape)), _digest(answer(shape))


def _make_proved(asked: cursor, shape: Shape, digest: str) -> None:
    table, plain = f"proved.{quoted(shape.table)}", [each.name for each in shape.keys if each.path[1:] != ("end",)]
    # A query names a key, with or without its window; a page of windows names these.
    first = sorted(plain, key=lambda name: name == shape.start)
    asked.execute(f"DROP TABLE IF EXISTS {table} CASCADE; CREATE TABLE {table} ({_proved(shape)})")
    asked.execute(f"CREATE INDEX ON {table} ({names(first)})")
    if not shape.is_total:
        asked.execute(f"CREATE INDEX ON {table} ({quoted(shape.start)})")
    asked.execute(f"CREATE INDEX ON {table} ({shape.interval})")
    for state in ("intervals", "windows", "positions"):
        asked.execute(f"DELETE FROM proved.tidemark_{state} WHERE table_name = %s", [shape.table])
    asked.execute(f"COMMENT ON TABLE {table} IS %s", [digest])


def _proved(shape: Shape) -> str:
    columns = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.columns)
    return f"{columns}, {shape.interval} bigint NOT NULL"


def both_layers(shape: Shape, source: str = "") -> str:
    """Return the query of each key's values in both layers; `source` is joined to either.

    Columns: the keys, `p_<measure>`, `l_<measure>`, `intervals` (that have rows of the key) and `version`, or by other
    names where a key has these (`Shape.own`).
    """
    keys = names(each.name for each in shape.keys)
    nothing = ", ".join(f"NULL::{each.kind} AS {shape.live(each)}" for each in shape.measures)
    proved = ", ".join(f"{quoted(each.name)} AS {shape.proved(each)}" for each in shape.measures)
    arms = [
        f"SELECT {keys}, {proved}, {nothing}, {shape.interval}, NULL::bigint AS {shape.version} "
        f"FROM proved.{quoted(shape.table)} {source}"
    ]
    if shape.has_live:
        stored = ((shape.stored_as(each), each) for each in shape.measures)
        live = ", ".join(quoted(name) if name else f"NULL::{each.kind}" for name, each in stored)
        arms.append(
            f"SELECT {keys}, {', '.join(f'NULL::{each.kind}' for each in shape.measures)}, "
            f"{live}, NULL::bigint, {shape.version} FROM {quoted(shape.table)} {source}"
        )
    sums = ", ".join(
        f"sum({shape.proved(each)})::{each.total} AS {shape.proved(each)}, "
        f"sum({shape.live(each)})::{each.total} AS {shape.live(each)}"
        for each in shape.measures
    )
    return (
        f"SELECT {keys}, {sums}, count({shape.interval}) AS {shape.intervals}, "
        f"max({shape.version}) AS {shape.version} "
        f"FROM ({' UNION ALL '.join(arms)}) AS layers GROUP BY {keys}"
    )


def answer(shape: Shape) -> str:
    """Return the query that `live.<table>` stands for."""
    first = shape.counting
    rows = f"each_key.{shape.proved(first)} > each_key.{shape.live(first)}" if first else "TRUE"
    # Not by a measure: the stream may have a null sum.
    missing = f"each_key.{shape.version} IS NULL"
    proved = _is_settled(shape) if shape.is_total else "w.proved_at IS NOT NULL"
    counts = f"{proved} OR {missing} OR ({rows})"
    values = [
        f"CASE WHEN {counts} THEN each_key.{shape.proved(each)} ELSE each_key.{shape.live(each)} END "
        f"AS {quoted(each.name)}"
        for each in shape.measures
    ]
    sides = {
        shape.own(f"{side}_{each.name}"): column(each)
        for each in shape.measures
        for side, column in (("proved", shape.proved), ("live", shape.live))
    }
    layers = [f"each_key.{column} AS {quoted(name)}" for name, column in sides.items()]
    # Chosen last: a measure called `below` has a side `proved_below`.
    added = ("state", "intervals", "version", "proved_until", "proved_below")
    own = {name: quoted(shape.own(name, sides)) for name in added}
    return (
        f"SELECT {', '.join(f'each_key.{quoted(each.name)}' for each in shape.keys)}, {', '.join(values)}, "
        f"CASE WHEN {proved} THEN 'proved' WHEN each_key.{shape.intervals} = 0 THEN 'live' ELSE 'both' END "
        f"AS {own['state']}, {', '.join(layers)}, each_key.{shape.intervals} AS {own['intervals']}, "
        f"each_key.{shape.version} AS {own['version']}, at.complete_until AS {own['proved_until']}, "
        f"at.offsets AS {own['proved_below']} FROM ({both_layers(shape)}) AS each_key "
        f"{'' if shape.is_total else _windows(shape)}"
        f"LEFT JOIN proved.tidemark_positions at ON at.table_name = '{shape.table}' "
        # Keys that only the speed view has in a proved window are not registered yet, or no longer.
        f"{'' if shape.is_total else f'WHERE w.proved_at IS NULL OR each_key.{shape.intervals} > 0'}"
    )


def _windows(shape: Shape) -> str:
    return (
        f"LEFT JOIN proved.tidemark_windows w ON w.table_name = '{shape.table}' "
        f"AND w.window_start = each_key.{quoted(shape.start)} AND w.window_end = each_key.{quoted(shape.end)} "
    )


def _is_settled(shape: Shape) -> str:
    """Return the condition that intervals have registered all that a total's live value counts."""
    if not shape.has_live:
        return "FALSE"
    version = f"coalesce(each_key.{shape.version}, {ALL} + 1)"
    return f"(each_key.{shape.intervals} > 0 AND {version} < coalesce(at.settled_below, {ALL}))"


def _digest(definition: str) -> str:
    return f"Tidemark {hashlib.sha256(definition.encode()).hexdigest()[:16]}"
