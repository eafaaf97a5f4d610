"""Which windows of a served view are proved: registered intervals cover them, and the stream has no more rows."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2.extensions import cursor

from include.serving.query import both_layers
from include.serving.shape import Shape, quoted

_COVERED = """
    SELECT w.window_start AS {start}, w.window_end AS {end} FROM proved.tidemark_windows w
    WHERE w.table_name = %(table)s AND w.proved_at IS NULL AND tstzrange(w.window_start, w.window_end) <@ (
        SELECT range_agg(tstzrange(from_time, to_time)) FROM proved.tidemark_intervals
        WHERE table_name = %(table)s AND covers)
"""


def prove(asked: cursor, shape: Shape, unsettled: int, lacking: Sequence[int], new: Sequence[int]) -> None:
    """Note as proved windows that registered intervals cover and of which the speed view has no more rows.

    It has more while a key's value came from a micro-batch that read beyond the registered offsets, and counts more
    rows than are registered. They are proved for good, except where one of the `new` intervals adds rows to those of a
    `lacking` one, without a measure: until this is run again, such windows are not.
    """
    values = {"table": shape.table, "unsettled": unsettled, "lacking": list(lacking), "new": list(new)}
    if lacking and new:
        partly = _partly_summed(shape, _touched(shape))
        asked.execute(
            f"UPDATE proved.tidemark_windows w SET proved_at = NULL FROM ({partly}) AS m "
            "WHERE w.table_name = %(table)s AND w.proved_at IS NOT NULL "
            "AND (w.window_start, w.window_end) = (m.window_start, m.window_end)",
            values,
        )
    first = shape.counting
    # A table with none of the measures tells nothing of its rows.
    has_more = f"{shape.live(first)} > coalesce({shape.proved(first)}, 0)" if first else "TRUE"
    start, end = _bounds(shape)
    pending = f"JOIN pending ON ({start}, {end}) = ({quoted(shape.start)}, {quoted(shape.end)})"
    partly = f" UNION ALL {_partly_summed(shape, 'TABLE pending')}" if lacking else ""
    asked.execute(
        f"WITH pending AS MATERIALIZED ({_COVERED.format(start=start, end=end)}), more AS ("
        f"SELECT {quoted(shape.start)} AS window_start, {quoted(shape.end)} AS window_end "
        f"FROM ({both_layers(shape, pending)}) AS each_key "
        f"WHERE {shape.version} >= %(unsettled)s AND {has_more}{partly}) "
        "UPDATE proved.tidemark_windows w SET proved_at = now() FROM pending p WHERE w.table_name = %(table)s "
        f"AND w.window_start = p.{start} AND w.window_end = p.{end} "
        "AND NOT EXISTS (SELECT FROM more WHERE (more.window_start, more.window_end) = (w.window_start, w.window_end))",
        values,
    )


def _bounds(shape: Shape) -> tuple[str, str]:
    """Return by which names windows are selected beside the view's own columns."""
    return shape.own("tidemark_start"), shape.own("tidemark_end")


def _touched(shape: Shape) -> str:
    """Return the query of the windows that new intervals have rows of."""
    start, end = _bounds(shape)
    return (
        f"SELECT DISTINCT {quoted(shape.start)} AS {start}, {quoted(shape.end)} AS {end} "
        f"FROM proved.{quoted(shape.table)} WHERE {shape.interval} = ANY(%(new)s)"
    )


def _partly_summed(shape: Shape, windows: str) -> str:
    """Return the query of those of the windows in which some rows lack a measure and others have all.

    The sum of that measure is that of a part of the rows.
    """
    start, end = _bounds(shape)
    own = f"(r.{quoted(shape.start)}, r.{quoted(shape.end)})"
    return (
        f"SELECT r.{quoted(shape.start)} AS window_start, r.{quoted(shape.end)} AS window_end "
        f"FROM proved.{quoted(shape.table)} r JOIN ({windows}) AS w ON (w.{start}, w.{end}) = {own} GROUP BY 1, 2 "
        f"HAVING bool_or(r.{shape.interval} = ANY(%(lacking)s)) AND bool_or(r.{shape.interval} <> ALL(%(lacking)s))"
    )
