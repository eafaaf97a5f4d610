"""Registered partial values in PostgreSQL: they follow the ledger, after each registration and on request.

One transaction per view: readers see a registration whole or not at all. It takes what the ledger has at that time, so
repeating it changes nothing, and the next publication does what a killed one did not do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from psycopg2.extensions import cursor
from psycopg2.extras import execute_values

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError, one_line
from include.ledger.archive.committed import last_emitted
from include.ledger.completeness.served import ALL, ServedInterval, ServedState, files_of_revisions, served_state
from include.ledger.streams import generations
from include.pipelines.spec import Pipeline
from include.serving import DATABASE, transaction
from include.serving.dependents import DROP_THEM
from include.serving.followed import followed_shapes
from include.serving.live_rows import ROWS_A_STATEMENT, note_windows
from include.serving.live_table import Found, find, lacks_rows, lost, new_generation
from include.serving.proving import prove
from include.serving.relations import ensure, ensure_states, kept_by_dependents, lock_view, other_declaration
from include.serving.shape import Shape, names, quoted
from include.serving.stored import stored_rows

LEFT = "is left as it is"
"""In the line about a view that could not be changed."""


class _NotAsBuilt(TidemarkError):
    """A registered revision's files are not as they were built, or cannot be read."""


_DEEP = "./tidemark doctor --deep"

_KNOWN = "SELECT interval_id, revision, covers, from_time, to_time FROM proved.tidemark_intervals WHERE table_name = %s"

_NOTE = """
    INSERT INTO proved.tidemark_intervals (table_name, interval_id, from_time, to_time, covers, revision, rows)
    VALUES %s ON CONFLICT (table_name, interval_id) DO UPDATE SET from_time = EXCLUDED.from_time,
        to_time = EXCLUDED.to_time, covers = EXCLUDED.covers, revision = EXCLUDED.revision, rows = EXCLUDED.rows,
        followed_at = now()
"""

_POSITION = """
    INSERT INTO proved.tidemark_positions (table_name, complete_until, offsets) VALUES (%s, %s, %s)
    ON CONFLICT (table_name) DO UPDATE
    SET (complete_until, offsets, followed_at) = (EXCLUDED.complete_until, EXCLUDED.offsets, now())
"""

_SETTLED = "UPDATE proved.tidemark_positions SET settled_below = %s WHERE table_name = %s"


def follow_ledger(pipeline: Pipeline, *, counted: bool = False) -> list[str]:
    """Make PostgreSQL serve the registered values of the pipeline's served views; return the changes, a line each.

    A view whose stream has written rows by another declaration is left as it is, which is a line, too: this code may be
    older than the stream's, or newer, and then a new generation makes its table anew. So is one of whose registered
    files any is not as it was built: it may be that of an interval long ago, and what is registered now is registered.

    With `counted`, intervals of which it holds another number of rows than were built are loaded again too. Raises
    ServiceUnreachable.
    """
    lines = []
    for view, shape in followed_shapes(pipeline).items():
        try:
            lines.append(_follow_view(pipeline, view, shape, counted=counted))
        except _NotAsBuilt as error:
            lines.append(_left(shape, f"{error.message}; {error.remedy}"))
    return [line for line in lines if line]


def _follow_view(pipeline: Pipeline, view: str, shape: Shape, *, counted: bool) -> str:
    with transaction("repair the table, then ./tidemark doctor --repair") as asked:
        ensure_states(asked)
        lock_view(asked, shape)
        state = _state(pipeline, view, shape)
        loaded: list[ServedInterval] = []

        def load_all(stored: Shape, table: str) -> None:
            _load(asked, stored, table, state.intervals)
            loaded.extend(state.intervals)

        shape, difference = ensure(asked, shape, load_all)
        if difference:
            return _left(shape, difference)
        if counted and (wrong := _wrong_counts(asked, shape, state)):
            where = "table_name = %s AND interval_id = ANY(%s)"
            asked.execute(f"DELETE FROM proved.tidemark_intervals WHERE {where}", [shape.table, wrong])
            # Also of intervals that the ledger does not know: it may have been restored from an older copy.
            rows = f"DELETE FROM proved.{quoted(shape.table)} WHERE {shape.interval} = ANY(%s)"
            asked.execute(rows, [wrong])
        count = _follow(asked, shape, state, loaded)
        crash_point("serving_written")
    return f"live.{shape.table} follows {count} intervals" if count else ""


def _state(pipeline: Pipeline, view: str, shape: Shape) -> ServedState:
    """Return what is registered of a view, without rows that lack a column of its key.

    Beside the stream's rows by the whole key they would be a second answer. Files have a renamed column by either name.
    """
    keys = {each.path[0] for each in shape.keys} - shape.formerly.keys() if shape.has_live else ()
    measures = [(each.path[0], *shape.formerly.get(each.path[0], ())) for each in shape.measures]
    return served_state(pipeline.name, view, shape.table, is_total=shape.is_total, keys=keys, measures=measures)


def _left(shape: Shape, difference: str) -> str:
    return f"live.{shape.table} {LEFT}: {difference}"


def lost_tables(pipeline: Pipeline) -> Iterator[tuple[str, str, str]]:
    """Yield, as `differences` does, each table that lacks rows which the stream has written.

    Only a new generation writes them again.
    """
    generation = generations.current(pipeline.name)
    for view, shape in followed_shapes(pipeline).items():
        written = last_emitted(pipeline.name, view, generation.version(-1)) if generation and shape.has_live else None
        with transaction("./tidemark doctor --repair") as asked:
            is_lost = lacks_rows(asked, shape, written)
        if is_lost:
            yield shape.table, lost(shape).message, lost(shape).remedy


def differences(pipeline: Pipeline) -> Iterator[tuple[str, str, str]]:
    """Yield each served view whose registered values in PostgreSQL differ from the ledger: table, difference, remedy.

    The remedy is empty when following the ledger is one, as it is for a view whose relations were dropped. A view of
    which neither the stream nor an interval has rows is left out: it may never have been served.
    """
    for view, shape in followed_shapes(pipeline).items():
        with transaction("./tidemark doctor --repair") as asked:
            found = find(asked, shape)
            other = other_declaration(asked, shape, found)
            kept = "" if other else kept_by_dependents(asked, shape, found)
            state = _state(pipeline, view, shape)
            missing = _missing(shape, found, state)
            wrong = set() if found.proved is None else _wrong(asked, shape, state)
        if other:
            yield shape.table, _left(shape, other), new_generation(shape)
        elif kept:
            yield shape.table, _left(shape, kept), DROP_THEM
        elif missing:
            yield shape.table, f"PostgreSQL's database {DATABASE} lacks {' and '.join(missing)}", ""
        elif wrong:
            what = f"live.{shape.table} holds other registered values than the ledger names of {len(wrong)} intervals"
            yield shape.table, what, ""


def _missing(shape: Shape, found: Found, state: ServedState) -> list[str]:
    """Return the view's relations that PostgreSQL lacks although there is something to serve."""
    if found.proved is None and not found.columns and not any(each.rows for each in state.intervals):
        return []
    relations = {"proved": found.proved, "live": found.view}
    return [f"{schema}.{shape.table}" for schema, digest in relations.items() if digest is None]


def _wrong(asked: cursor, shape: Shape, state: ServedState) -> set[int]:
    """Return the intervals of which PostgreSQL holds another revision, or another number of rows, than the ledger."""
    known = _known(asked, shape)
    wanted = {each.id: each for each in state.intervals}
    wrong = {*_wrong_counts(asked, shape, state), *(known.keys() - wanted.keys())}
    return wrong | {number for number, each in wanted.items() if known.get(number) != _noted(each)}


def _wrong_counts(asked: cursor, shape: Shape, state: ServedState) -> list[int]:
    """Return the intervals of which another number of rows is held than was built."""
    table = f"proved.{quoted(shape.table)}"
    asked.execute(f"SELECT {shape.interval}, count(*) FROM {table} GROUP BY {shape.interval}")
    held, built = dict(asked.fetchall()), {each.id: each.rows for each in state.intervals if each.rows}
    return [number for number in held.keys() | built.keys() if held.get(number, 0) != built.get(number, 0)]


def _known(asked: cursor, shape: Shape) -> dict[int, list[object]]:
    asked.execute(_KNOWN, [shape.table])
    return {number: rest for number, *rest in asked.fetchall()}


def _follow(asked: cursor, shape: Shape, state: ServedState, loaded: Collection[ServedInterval]) -> int:
    """Replace the partial values of intervals that differ by the registered ones; return how many differed.

    Those of `loaded` intervals are there already, in a table that was made anew.
    """
    known = _known(asked, shape)
    wanted = {each.id: each for each in state.intervals}
    noted = [each for each in state.intervals if known.get(each.id) != _noted(each)]
    new = [each for each in noted if each.id not in known or known[each.id][0] != each.revision]
    gone = known.keys() - wanted.keys()
    table = f"proved.{quoted(shape.table)}"
    if stale := [] if loaded else [*gone, *(each.id for each in new)]:
        asked.execute(f"DELETE FROM {table} WHERE {shape.interval} = ANY(%s)", [stale])
        _load(asked, shape, table, new)
    if new:
        note_windows(asked, shape, table, [each.id for each in new])
    if gone:
        where = "table_name = %s AND interval_id = ANY(%s)"
        asked.execute(f"DELETE FROM proved.tidemark_intervals WHERE {where}", [shape.table, list(gone)])
    rows = [
        (shape.table, each.id, each.from_time, each.to_time, each.covers, each.revision, each.rows) for each in noted
    ]
    execute_values(asked, _NOTE, rows, page_size=ROWS_A_STATEMENT)
    if not shape.is_total:
        prove(asked, shape, state.unsettled, state.lacking, [each.id for each in new])
    offsets: dict[str, dict[str, int]] = {}
    for tp, below in state.offsets:
        offsets.setdefault(tp.topic, {})[str(tp.partition)] = below
    asked.execute(_POSITION, [shape.table, state.complete_until, json.dumps(offsets)])
    if shape.is_total:
        # A total counts all that was ever archived: if some of it is in no interval, no key is proved.
        settled_below = state.unsettled if state.is_whole and not state.lacking else ALL
        asked.execute(_SETTLED, [settled_below, shape.table])
    return len(noted) + len(gone)


def _noted(interval: ServedInterval) -> list[object]:
    return [interval.revision, interval.covers, interval.from_time, interval.to_time]


def _load(asked: cursor, shape: Shape, table: str, intervals: Sequence[ServedInterval]) -> None:
    """Insert the partial values of intervals, those of their registered revisions, into a table with none of them."""
    files = files_of_revisions(shape.table, [each.revision for each in intervals if each.revision])
    insert = f"INSERT INTO {table} ({names([*(c.name for c in shape.columns), shape.interval])}) VALUES %s"
    for each in intervals:
        execute_values(asked, insert, _rows(shape, each, files.get(each.revision, [])), page_size=ROWS_A_STATEMENT)
        asked.execute(f"SELECT count(*) FROM {table} WHERE {shape.interval} = %s", [each.id])
        (loaded,) = asked.fetchone() or (0,)
        if loaded != each.rows:
            raise _NotAsBuilt(f"{each.location} has {loaded} rows, {each.rows} when it was built", remedy=_DEEP)


def _rows(shape: Shape, interval: ServedInterval, files: Iterable[str]) -> Iterator[tuple[object, ...]]:
    columns = list(dict.fromkeys(each.path[0] for each in shape.columns))
    for name in files:
        location = f"{interval.location}/{name}"
        try:
            with lake.open_parquet(location) as file:
                there = set(file.schema_arrow.names)
                read_as = {each: _name_in(there, each, shape.formerly.get(each, ())) for each in columns}
                for batch in file.iter_batches(columns=list(read_as.values())):
                    paths = [(read_as[each.path[0]], *each.path[1:]) for each in shape.columns]
                    rows = lake.python_rows(lake.counted_times(batch))
                    values = ([_value(row, path) for path in paths] for row in rows)
                    yield from ((*row, interval.id) for row in stored_rows(shape, values))
        except FileNotFoundError:
            raise _NotAsBuilt(f"{location} is missing", remedy=_DEEP) from None
        except (pa.ArrowException, OSError) as error:
            damaged = f"{location} cannot be read, it is damaged ({one_line(str(error))})"
            raise _NotAsBuilt(damaged, remedy=_DEEP) from error


def _name_in(there: Collection[str], name: str, before: Sequence[str]) -> str:
    """Return by which of its names a file has a column."""
    return next((each for each in (name, *before) if each in there), name)


def _value(row: dict[str, Any], path: tuple[str, ...]) -> object:
    value: Any = row
    for part in path:
        # A file from before a measure was declared does not have it.
        value = None if value is None else value.get(part)
    return value
