"""The query that a served view stands for.

A window of `live.<table>` is `proved` once `follow` has found it so, for good: then only the sum of the registered
partial values counts. Before that, the layer that holds more rows counts whole, by the first measure, which counts
rows: the two are never added up, so no row counts twice.

A key of a total, which has no window, is `proved` as long as intervals have registered all that its live value counts.
"""

from __future__ import annotations

from include.ledger.completeness.served import ALL
from include.serving.shape import Shape, names, quoted


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
