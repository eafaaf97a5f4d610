"""Lay out the grid of a report's section: squares in five tones by their rows."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from include.monitor.text import non_negative, number

TONES = 5
MOST_CELLS = 10_201
"""Limits of a grid; data beyond them is not drawn."""


@dataclass(frozen=True)
class Square:
    """A cell: its place from the left and from the top, in cells; `tone` grows with its rows."""

    x: int
    y: int
    tone: int
    title: str


@dataclass(frozen=True)
class GridPicture:
    """A grid as the template draws it."""

    columns: int
    rows: int
    squares: tuple[Square, ...]
    left: str
    right: str
    bottom: str
    top: str
    legend: tuple[tuple[int, str], ...]
    """Tones with the numbers of rows that they stand for."""


def grid_picture(grid: Any) -> GridPicture | None:
    """Return the picture; None without a grid that can be drawn."""
    try:
        size = float(grid["size"])
        (first_x, columns), (first_y, rows) = ((int(a), int(b)) for a, b in (grid["x"], grid["y"]))
        cells = [(int(x) - first_x, int(y) - first_y, int(non_negative(held))) for x, y, held in grid["cells"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    inside = all(0 <= x < columns and 0 <= y < rows for x, y, _ in cells)
    if not (cells and inside and 0 < columns * rows <= MOST_CELLS and math.isfinite(size) and size > 0):
        return None
    most = max(held for _, _, held in cells)
    digits = max(0, -math.floor(math.log10(size)))

    def at(place: int) -> str:
        return f"{place * size:.{digits}f}"

    squares = tuple(
        Square(
            x,
            rows - 1 - y,
            _tone(held, most),
            f"{at(first_x + x)}, {at(first_y + y)}: {number(held)}",
        )
        for x, y, held in cells
    )
    ends = (at(first_x), at(first_x + columns), at(first_y), at(first_y + rows))
    return GridPicture(columns, rows, squares, *ends, _legend(most))


def _least(most: int) -> list[int]:
    """Return the least rows of each tone, by powers: most cells hold far fewer than the fullest."""
    return [math.ceil(most ** (tone / TONES)) for tone in range(TONES)]


def _tone(held: int, most: int) -> int:
    """Return 0 to 4."""
    return max(0, bisect_right(_least(most), held) - 1)


def _legend(most: int) -> tuple[tuple[int, str], ...]:
    """Return the least and the most rows of each tone that can occur."""
    least = _least(most)
    ends = [*(each - 1 for each in least[1:]), most]
    bounds = ((tone, first, last) for tone, (first, last) in enumerate(zip(least, ends, strict=True)) if first <= last)
    return tuple((tone, number(a) if a == b else f"{number(a)} to {number(b)}") for tone, a, b in bounds)
