"""A report's grid: every row with both values in one cell, in cells of a readable size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from include.pipelines.spec import Grid
from spark_jobs.intervals.report_grid import LARGEST, cell_size, grid_section

pytestmark = pytest.mark.spark

MAP = Grid("Where vehicles were", x="longitude", y="latitude", cells=10)
COLUMNS = "longitude DOUBLE, latitude DOUBLE"


def test_row_lies_in_one_cell_when_it_has_a_place(spark: Any) -> None:
    places = [(n * 0.37 - 3.0, n * 0.11) for n in range(40)]
    nowhere = [(None, 1.0), (1.0, None), (float("nan"), 1.0), (1.0, float("inf")), (float("-inf"), 0.0)]
    section = grid_section(MAP, spark.createDataFrame([*places, *nowhere], COLUMNS), "the interval")

    grid = section["grid"]
    assert grid["size"] == 2.0
    expected = Counter((floor(x / 2.0), floor(y / 2.0)) for x, y in places)
    assert grid["cells"] == [[x, y, held] for (x, y), held in sorted(expected.items())]
    assert (grid["x"], grid["y"]) == ([-2, 8], [0, 3])
    largest = sorted(expected.items(), key=lambda cell: (-cell[1], cell[0]))[:LARGEST]
    assert section["rows"] == [[f"{x * 2}", f"{y * 2}", held] for (x, y), held in largest]
    assert section["truncated"] == max(0, len(expected) - LARGEST)
    assert section["note"] == "rows of the interval by longitude and latitude, in cells of 2"


@pytest.mark.parametrize("rows", [[], [(None, None)], [(float("nan"), 1.0)]])
def test_there_is_no_grid_when_no_row_has_a_place(spark: Any, rows: list[Any]) -> None:
    section = grid_section(MAP, spark.createDataFrame(rows, COLUMNS), "the interval")
    assert (section["rows"], section["truncated"]) == ([], 0)
    assert "grid" not in section


def test_there_is_one_cell_when_all_rows_have_one_place(spark: Any) -> None:
    section = grid_section(MAP, spark.createDataFrame([(8.54, 47.37)] * 3, COLUMNS), "the interval")
    assert section["grid"]["cells"] == [[8, 47, 3]]


@pytest.mark.parametrize("begin", [0, -27, 17_636_151_070])
@pytest.mark.parametrize(("cells", "step"), [(100, "1/2"), (50, "1"), (25, "2"), (10, "5")])
def test_row_on_an_edge_lies_in_the_cell_that_begins_there(spark: Any, begin: int, cells: int, step: str) -> None:
    places = [(begin + n) / 10 for n in range(50)]
    rows = spark.createDataFrame([(place, place) for place in places], COLUMNS)
    grid = grid_section(replace(MAP, cells=cells), rows, "the interval")["grid"]
    assert grid["size"] == float(Fraction(step) / 10)
    # One more where the first value lies inside a cell.
    assert grid["x"][1] == grid["y"][1] <= cells + (begin / Fraction(step) % 1 > 0)
    expected = Counter(floor((begin + n) / Fraction(step)) for n in range(50))
    assert grid["cells"] == [[cell, cell, held] for cell, held in sorted(expected.items())]


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([(1.7e308, 0.0), (-1.7e308, 0.0)], None),
        ([(1e300, 1e300)] * 2, None),
        ([(1e300, 1.0), (3.0, 4.0)], [[3, 4, 1]]),
        ([(0.0, 0.0), (5e-324, 0.0)], [[0, 0, 2]]),
        ([(1e15, 0.0), (1e15, 5e-324)], [[10**15, 0, 2]]),
        ([(1e15, 0.0), (1e15, 1e-3)], [[10**15, 0, 2]]),
        ([(-1e15, 1.0), (1e15, 1.0)], [[-5, 0, 1], [5, 0, 1]]),
    ],
)
def test_grid_is_made_when_values_are_as_far_or_as_near_as_doubles_reach(
    spark: Any, rows: list[Any], cells: Any
) -> None:
    section = grid_section(MAP, spark.createDataFrame(rows, COLUMNS), "the interval")
    assert section.get("grid", {}).get("cells") == cells


@given(span=st.floats(1e-9, 1e9), cells=st.integers(1, 100))
@example(span=1.0, cells=10)
@example(span=360.0, cells=24)
def test_cells_cover_the_span_when_their_size_is_the_smallest_possible(span: float, cells: int) -> None:
    size = cell_size(span, cells)
    assert span / size <= cells * (1 + 1e-9)
    assert span / size > cells / 2.5 * (1 - 1e-9)
