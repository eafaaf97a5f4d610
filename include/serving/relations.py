"""The tables and the view of a served view, created if they are missing or of another declaration.

A window of `live.<table>` is `proved` once `follow` has found it so, for good: then only the sum of the registered
partial values counts. Before that, the layer that holds more rows counts whole, by the first measure, which counts
rows: the two are never added up, so no row counts twice.

A key of a total, which has no window, is `proved` as long as intervals have registered all that its live value counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from psycopg2.extensions import cursor

from include.ledger.completeness.served import ALL
from include.serving.shape import Column, Shape

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

_FOUND = """
    SELECT to_regclass(%(table)s) IS NOT NULL,
        (SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'p'),
        obj_description(to_regclass('proved.' || %(table)s), 'pg_class'),
        obj_description(to_regclass('live.' || %(table)s), 'pg_class'),
        EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = to_regclass(%(table)s) AND attnotnull AND attname = ANY(%(measures)s::name[])),
        (SELECT json_object_agg(attname, format_type(atttypid, atttypmod)) FROM pg_attribute
            WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped),
        ARRAY(SELECT attname::text FROM pg_attribute a JOIN pg_constraint c ON c.conrelid = a.attrelid
            WHERE a.attrelid = to_regclass(%(table)s) AND c.contype IN ('p', 'u') AND a.attnum = ANY(c.conkey))
"""

_FORMATTED = {"timestamptz": "timestamp with time zone"}
"""Types by the names that PostgreSQL's catalog gives them, where these differ."""


def ensure(asked: cursor, shape: Shape) -> None:
    """Create what is missing. Partial values of another declaration are dropped; `follow` loads them again."""
    has_live, primary_key, proved, view, refuses_nulls, there, key = _found(asked, shape)
    wanted = _digest(_proved(shape)), _digest(answer(shape))
    has_key = set(key or ()) == {each.name for each in shape.keys}
    differs = bool(shape.has_live and there and (not has_key or _differing(shape.columns, there)))
    is_current = not primary_key and not refuses_nulls and not differs
    if (proved, view) == wanted and is_current and has_live >= shape.has_live:
        return
    # IF NOT EXISTS fails when two create at once: this lock lets one in after the other.
    asked.execute("SELECT pg_advisory_xact_lock(hashtext('tidemark serving'))")
    asked.execute(_STATES)
    if differs:
        _adapt_live(asked, shape, there, has_key=has_key)
    if shape.has_live:
        _ensure_live(asked, shape, primary_key)
        if refuses_nulls:
            # Tables were made with measures that take no nulls; a sum of nulls is null.
            _take_nulls(asked, shape.table, shape.measures)
    proved, view = _found(asked, shape)[2:4]
    if proved != wanted[0]:
        _make_proved(asked, shape, wanted[0])
        view = None
    if view != wanted[1]:
        name = f"live.{quoted(shape.table)}"
        asked.execute(f"DROP VIEW IF EXISTS {name}; CREATE VIEW {name} AS {answer(shape)}")
        asked.execute(f"COMMENT ON VIEW {name} IS %s", [wanted[1]])


def _found(asked: cursor, shape: Shape) -> tuple[Any, ...]:
    measures = [each.name for each in shape.measures]
    asked.execute(_FOUND, {"table": shape.table, "measures": measures if shape.has_live else []})
    return asked.fetchone() or (None,) * 7


def _differing(columns: Iterable[Column], there: Mapping[str, str]) -> list[Column]:
    return [each for each in columns if there.get(each.name) != _FORMATTED.get(each.kind, each.kind)]


def _adapt_live(asked: cursor, shape: Shape, there: Mapping[str, str], *, has_key: bool) -> None:
    """Give a table that was made by another declaration the columns of this one.

    A table with another key is made anew. The new generation, without which no stream goes on after such a change,
    fills it.
    """
    table = quoted(shape.table)
    if not has_key or _differing(shape.keys, there):
        asked.execute(f"DROP TABLE {table} CASCADE")
        return
    # It holds on to types and names of the columns.
    asked.execute(f"DROP VIEW IF EXISTS live.{table}")
    for each in _differing(shape.measures, there):
        kind, name = each.kind, quoted(each.name)
        before = next((old for old in shape.formerly.get(each.name, ()) if old in there), None)
        if each.name not in there and before is None:
            asked.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
            continue
        if each.name not in there and before is not None:
            asked.execute(f"ALTER TABLE {table} RENAME COLUMN {quoted(before)} TO {name}")
        asked.execute(f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}")


def _take_nulls(asked: cursor, table: str, columns: Iterable[Column]) -> None:
    nulls = ", ".join(f"ALTER COLUMN {quoted(each.name)} DROP NOT NULL" for each in columns)
    asked.execute(f"ALTER TABLE {quoted(table)} {nulls}")


def _ensure_live(asked: cursor, shape: Shape, primary_key: str | None) -> None:
    table, unique = quoted(shape.table), _unique(shape)
    if primary_key:
        # A table that was made with a primary key, which takes no nulls, gets the key that tables have now.
        asked.execute(f"ALTER TABLE {table} DROP CONSTRAINT {quoted(primary_key)}, ADD {unique}")
        _take_nulls(asked, shape.table, shape.keys)
        return
    keys = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.keys)
    measures = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.measures)
    asked.execute(f"CREATE TABLE IF NOT EXISTS {table} ({keys}, {measures}, version bigint NOT NULL, {unique})")
    if shape.is_total:
        return
    index = quoted(f"{shape.table}_by_window"[-63:])
    asked.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {table} ({quoted(shape.start)})")


def _unique(shape: Shape) -> str:
    # Not a primary key, which takes no nulls.
    return f"UNIQUE NULLS NOT DISTINCT ({names(each.name for each in shape.keys)})"


def _make_proved(asked: cursor, shape: Shape, digest: str) -> None:
    table, plain = f"proved.{quoted(shape.table)}", [each.name for each in shape.keys if each.path[1:] != ("end",)]
    # A query names a key, with or without its window; a page of windows names these.
    first = sorted(plain, key=lambda name: name == shape.start)
    asked.execute(f"DROP TABLE IF EXISTS {table} CASCADE; CREATE TABLE {table} ({_proved(shape)})")
    asked.execute(f"CREATE INDEX ON {table} ({names(first)})")
    if not shape.is_total:
        asked.execute(f"CREATE INDEX ON {table} ({quoted(shape.start)})")
    asked.execute(f"CREATE INDEX ON {table} (tidemark_interval)")
    for state in ("intervals", "windows", "positions"):
        asked.execute(f"DELETE FROM proved.tidemark_{state} WHERE table_name = %s", [shape.table])
    asked.execute(f"COMMENT ON TABLE {table} IS %s", [digest])


def _proved(shape: Shape) -> str:
    columns = ", ".join(f"{quoted(each.name)} {each.kind}" for each in shape.columns)
    return f"{columns}, tidemark_interval bigint NOT NULL"


def both_layers(shape: Shape, source: str = "") -> str:
    """Return the query of each key's values in both layers; `source` is joined to either.

    Columns: the keys, `p_<measure>`, `l_<measure>`, `intervals` (that have rows of the key) and `version`.
    """
    keys = names(each.name for each in shape.keys)
    nothing = ", ".join(f"NULL::{each.kind} AS {quoted('l_' + each.name)}" for each in shape.measures)
    proved = ", ".join(f"{quoted(each.name)} AS {quoted('p_' + each.name)}" for each in shape.measures)
    arms = [
        f"SELECT {keys}, {proved}, {nothing}, tidemark_interval, NULL::bigint AS version "
        f"FROM proved.{quoted(shape.table)} {source}"
    ]
    if shape.has_live:
        arms.append(
            f"SELECT {keys}, {', '.join(f'NULL::{each.kind}' for each in shape.measures)}, "
            f"{names(each.name for each in shape.measures)}, NULL::bigint, version FROM {quoted(shape.table)} {source}"
        )
    sums = ", ".join(
        f"sum({quoted('p_' + each.name)})::{each.total} AS {quoted('p_' + each.name)}, "
        f"sum({quoted('l_' + each.name)})::{each.total} AS {quoted('l_' + each.name)}"
        for each in shape.measures
    )
    return (
        f"SELECT {keys}, {sums}, count(tidemark_interval) AS intervals, max(version) AS version "
        f"FROM ({' UNION ALL '.join(arms)}) AS layers GROUP BY {keys}"
    )


def answer(shape: Shape) -> str:
    """Return the query that `live.<table>` stands for."""
    rows = f"each_key.{quoted('p_' + shape.measures[0].name)} > each_key.{quoted('l_' + shape.measures[0].name)}"
    # Not by a measure: the stream may have a null sum.
    missing = "each_key.version IS NULL"
    proved = _is_settled(shape) if shape.is_total else "w.proved_at IS NOT NULL"
    counts = f"{proved} OR {missing} OR ({rows})"
    own = {name: quoted(shape.own(name)) for name in ("state", "intervals", "version", "proved_until", "proved_below")}
    values = [
        f"CASE WHEN {counts} THEN each_key.{quoted('p_' + each.name)} ELSE each_key.{quoted('l_' + each.name)} END "
        f"AS {quoted(each.name)}"
        for each in shape.measures
    ]
    sides = [
        f"each_key.{quoted(side[0] + '_' + each.name)} AS {quoted(shape.own(f'{side}_{each.name}'))}"
        for each in shape.measures
        for side in ("proved", "live")
    ]
    return (
        f"SELECT {', '.join(f'each_key.{quoted(each.name)}' for each in shape.keys)}, {', '.join(values)}, "
        f"CASE WHEN {proved} THEN 'proved' WHEN each_key.intervals = 0 THEN 'live' ELSE 'both' END "
        f"AS {own['state']}, {', '.join(sides)}, each_key.intervals AS {own['intervals']}, "
        f"each_key.version AS {own['version']}, at.complete_until AS {own['proved_until']}, "
        f"at.offsets AS {own['proved_below']} FROM ({both_layers(shape)}) AS each_key "
        f"{'' if shape.is_total else _windows(shape)}"
        f"LEFT JOIN proved.tidemark_positions at ON at.table_name = '{shape.table}' "
        # Keys that only the speed view has in a proved window are not registered yet, or no longer.
        f"{'' if shape.is_total else 'WHERE w.proved_at IS NULL OR each_key.intervals > 0'}"
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
    return f"(each_key.intervals > 0 AND coalesce(each_key.version, {ALL} + 1) < coalesce(at.settled_below, {ALL}))"


def _digest(definition: str) -> str:
    return f"Tidemark {hashlib.sha256(definition.encode()).hexdigest()[:16]}"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def names(columns: Iterable[str]) -> str:
    """Return names as a list of identifiers."""
    return ", ".join(map(quoted, columns))
