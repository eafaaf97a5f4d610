"""A report's grid: how many rows lie in each cell of two numeric columns."""

from __future__ import annotations

import math
import sys
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.pipelines.spec import Grid

LARGEST = 10
"""Cells that are listed beside the picture."""

FARTHEST = 1e15
"""The largest value that is placed: beyond some 15 digits, a double does not tell one cell from the next."""


def grid_section(report: Grid, rows: DataFrame, scope: str) -> dict[str, Any]:
    """Return the section: the largest cells as rows, and all of them as `grid`.

    `grid` has `size` (of a cell, in the columns' unit), `x` and `y` (the number of the first cell and how many there
    are; cell n begins at n times the size) and `cells` (x, y, rows), the lowest first. Rows in which a value is
    missing, not finite or beyond 10¹⁵ are in no cell.
    """
    x, y = F.col(report.x).cast("double"), F.col(report.y).cast("double")
    placed = rows.select(x.alias("x"), y.alias("y")).where(_is_placed("x") & _is_placed("y"))
    bounds = placed.agg(F.min("x"), F.max("x"), F.min("y"), F.max("y")).collect()[0]
    note = f"rows of {scope} by {report.x} and {report.y}"
    columns = [f"{report.x} from", f"{report.y} from", "rows"]
    section = {"title": report.title, "note": note, "columns": columns, "rows": [], "truncated": 0}
    if bounds[0] is None:
        return section
    span, largest = max(bounds[1] - bounds[0], bounds[3] - bounds[2]), max(map(abs, bounds))
    size = cell_size(span, report.cells, largest)
    binned = placed.groupBy(*(_cell(name, size).alias(name) for name in ("x", "y"))).count()
    cells = sorted((int(row["x"]), int(row["y"]), int(row["count"])) for row in binned.collect())
    largest = sorted(cells, key=lambda cell: (-cell[2], cell))[:LARGEST]
    return {
        **section,
        "note": f"{note}, in cells of {size:g}",
        "rows": [[_begin(cell[0], size), _begin(cell[1], size), cell[2]] for cell in largest],
        "truncated": len(cells) - len(largest),
        "grid": {"size": size, "x": _extent(cells, 0), "y": _extent(cells, 1), "cells": [list(cell) for cell in cells]},
    }


def cell_size(span: float, cells: int, largest: float = 0.0) -> float:
    """Return the least of 1, 2 and 5 times a power of ten of which at most `cells` are as long as the span.

    Where the span begins inside a cell, the values lie in at most one more. It is 1 for no span, and one by which the
    largest value can be counted.
    """
    least = max(span / cells, largest / FARTHEST)
    if span <= 0 or least < sys.float_info.min:
        return 1.0
    power = math.floor(math.log10(least))
    return next(size for size in (float(f"{step}e{power}") for step in (1, 2, 5, 10)) if size >= least)


def _is_placed(name: str) -> Column:
    # Spark orders NaN after every number.
    return F.abs(F.col(name)) <= FARTHEST


def _cell(name: str, size: float) -> Column:
    """Return the number of the cell that holds a value; one on an edge lies in the cell that begins there."""
    place = F.col(name) / size
    nearest = F.rint(place)
    # By doubles, 0.3 is less than three times 0.1.
    is_edge = F.abs(place - nearest) <= F.greatest(F.lit(1e-9), F.abs(place) * 1e-15)
    return F.when(is_edge, nearest).otherwise(F.floor(place)).cast("bigint")


def _extent(cells: list[tuple[int, int, int]], axis: int) -> list[int]:
    places = [cell[axis] for cell in cells]
    return [min(places), max(places) - min(places) + 1]


def _begin(place: int, size: float) -> str:
    """Return where a cell begins, with as many decimals as its size has."""
    return f"{place * size:.{max(0, -math.floor(math.log10(size)))}f}"
