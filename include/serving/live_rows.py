"""The speed view's values in PostgreSQL: one row per key, upserted in one transaction per micro-batch.

The same transaction moves the view's marker in `tidemark_versions`, so a micro-batch that is replayed, or one of a
driver that lost its lease, changes nothing. A base that is made again replaces the former one of the same version, so
the lease is checked as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from psycopg2.extensions import cursor
from psycopg2.extras import execute_values

from include.crash_points import crash_point
from include.errors import UsageError
from include.ledger.archive.committed import last_emitted
from include.ledger.archive.micro_batches import has_batch_since
from include.ledger.connection import LOCK_SECONDS
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration
from include.pipelines.spec import Pipeline
from include.serving import transaction
from include.serving.live_table import is_gone, lacks_rows, lost
from include.serving.relations import ensure_for_stream, ensure_states
from include.serving.shape import Shape, names, quoted, served_shapes
from include.serving.stored import stored_rows

ROWS_A_STATEMENT = 1000


def merge(
    shape: Shape,
    rows: Iterable[Sequence[object]],
    version: int,
    *,
    replace: bool = False,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Upsert the rows, values of `stored_rows`, or replace all rows by them, as a generation's base does.

    Raises ServiceUnreachable, UsageError when the table was dropped, TidemarkError when it has rows by another key,
    both unless it is replaced, and what `check` raises before the commit: another driver waits meanwhile, or has
    replaced the rows before.
    """
    with transaction("nothing of the micro-batch was written; repair the table and start again") as asked:
        ensure_states(asked)
        if not replace and is_gone(asked, shape):
            raise lost(shape)
        # First: code of before the present generation must not bring back the tables of its own declaration.
        if not _advance(asked, shape.table, version, again=replace):
            return
        ensure_for_stream(asked, shape, as_base=replace)
        # Not before: a view's first load, which takes minutes, may be waited for. Who waits here waits for somebody who
        # locked the table, and is to say so before the stream counts as stalled.
        asked.execute(f"SET LOCAL lock_timeout = {1000 * LOCK_SECONDS:.0f}")
        columns = names([*(each.name for each in shape.columns), shape.version])
        table, staged = quoted(shape.table), quoted(f"staged_{shape.table}"[:63])
        asked.execute(f"CREATE TEMP TABLE {staged} ON COMMIT DROP AS SELECT {columns} FROM {table} LIMIT 0")
        stored = ((*row, version) for row in stored_rows(shape, rows))
        execute_values(asked, f"INSERT INTO {staged} ({columns}) VALUES %s", stored, page_size=ROWS_A_STATEMENT)
        note_windows(asked, shape, staged)
        if replace:
            asked.execute(f"DELETE FROM {table}")
        keys = names(each.name for each in shape.keys)
        measured = (*(each.name for each in shape.measures), shape.version)
        # In the order of the key, so that concurrent writers wait for each other instead of deadlocking.
        asked.execute(
            f"INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {staged} ORDER BY {keys} "
            f"ON CONFLICT ({keys}) DO UPDATE SET "
            + ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in measured)
            + _if_changed(shape)
        )
        crash_point("jdbc_staged")
        check()
    crash_point("jdbc_committed")


def check_own_live_tables(pipeline: Pipeline) -> None:
    """Raise UsageError when the table of a view that never ran holds later versions than its stream will write.

    They are of another pipeline, whose view made a table of this name. `merge` would take the stream's rows for those
    of an older micro-batch and leave them out. Raises ServiceUnreachable.
    """
    generation = generations.current(pipeline.name)
    started = generation.positions if generation else {}
    views = {table: view for table, view in pipeline.live_tables.items() if view not in started}
    # A base that is written again after a crash has this version.
    first = generation.version(-1) if generation else -1
    for table, version in _versions(views).items() if views else ():
        if version > first and not has_batch_since(pipeline.name, views[table], -1):
            raise UsageError(
                f"the table {table} of serving was written before the view {views[table]} of {pipeline.name} started: "
                "its rows would be left out as older ones",
                remedy=f"give the view another name in include/pipelines/{pipeline.code}.py, or, in PostgreSQL's "
                f"database serving: DROP TABLE {table} CASCADE; "
                f"DELETE FROM tidemark_versions WHERE table_name = '{table}'",
                pipeline=pipeline.name,
            )


def check_written_live_tables(pipeline: Pipeline, generation: StreamGeneration) -> None:
    """Raise UsageError when a view's table lacks rows that its stream has written in the generation.

    A stream goes on with the keys that change: all others would be missing, or stay as they were. Raises
    ServiceUnreachable.
    """
    for view, shape in served_shapes(pipeline).items():
        written = last_emitted(pipeline.name, view, generation.version(-1)) if shape.has_live else None
        if written is None:
            continue
        with transaction("./tidemark doctor") as asked:
            if lacks_rows(asked, shape, written):
                raise lost(shape)


def _versions(tables: Collection[str]) -> dict[str, int]:
    with transaction("./tidemark doctor --repair") as asked:
        ensure_states(asked)
        asked.execute("SELECT table_name, version FROM tidemark_versions WHERE table_name = ANY(%s)", [[*tables]])
        return dict(asked.fetchall())


def note_windows(asked: cursor, shape: Shape, table: str, intervals: Sequence[int] | None = None) -> None:
    """Note the windows of a table's rows, those of some intervals or all; none for a view without windows."""
    if shape.is_total:
        return
    chosen = "" if intervals is None else f"{shape.interval} = ANY(%s) AND "
    # In order, so that of two writers of the same windows one waits for the other, and never both.
    asked.execute(
        "INSERT INTO proved.tidemark_windows (table_name, window_start, window_end) "
        f"SELECT DISTINCT %s, {quoted(shape.start)}, {quoted(shape.end)} FROM {table} "
        f"WHERE {chosen}{quoted(shape.start)} IS NOT NULL ORDER BY 2, 3 ON CONFLICT DO NOTHING",
        [shape.table, *([] if intervals is None else [list(intervals)])],
    )


def _if_changed(shape: Shape) -> str:
    """Return the condition by which a row keeps the version that changed it last, if all keys are written each time."""
    before = ", ".join(f"{quoted(shape.table)}.{quoted(each.name)}" for each in shape.measures)
    after = ", ".join(f"EXCLUDED.{quoted(each.name)}" for each in shape.measures)
    return f" WHERE ({before}) IS DISTINCT FROM ({after})"


def _advance(asked: cursor, table: str, version: int, *, again: bool) -> bool:
    """Move the marker to the version. Return False when it is beyond it, or there already and not moved `again`."""
    asked.execute(
        "INSERT INTO tidemark_versions AS v (table_name, version) VALUES (%s, %s) ON CONFLICT (table_name) "
        "DO UPDATE SET version = EXCLUDED.version, written_at = now() "
        "WHERE v.version < EXCLUDED.version OR (%s AND v.version = EXCLUDED.version) RETURNING version",
        (table, version, again),
    )
    return asked.fetchone() is not None
