"""The picture of a report's grid."""

from __future__ import annotations

from typing import Any

import pytest

from include.monitor.report_grid import GridPicture, grid_picture

GRID = {"size": 0.5, "x": [-2, 3], "y": [94, 2], "cells": [[-2, 94, 1], [-1, 95, 20], [0, 94, 100]]}


def picture(grid: Any) -> GridPicture:
    drawn = grid_picture(grid)
    assert drawn is not None
    return drawn


def test_west_is_left_and_north_is_up_when_a_grid_is_drawn() -> None:
    drawn = picture(GRID)
    assert [(each.x, each.y) for each in drawn.squares] == [(0, 1), (1, 0), (2, 1)]
    tones = [each.tone for each in drawn.squares]
    assert tones == sorted(tones)
    assert (tones[0], tones[-1]) == (0, 4)
    assert [each.title for each in drawn.squares] == ["-1.0, 47.0: 1", "-0.5, 47.5: 20", "0.0, 47.0: 100"]
    assert (drawn.left, drawn.right, drawn.bottom, drawn.top) == ("-1.0", "0.5", "47.0", "48.0")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 31, 32, 33, 100_000, 10**15])
def test_legend_has_each_count_once_when_counts_repeat(most: int) -> None:
    drawn = picture({"size": 1, "x": [0, 1], "y": [0, 1], "cells": [[0, 0, most]]})
    ends = [[int(end.replace(",", "")) for end in words.split(" to ")] for _, words in drawn.legend]
    assert ends[0][0] == 1
    assert ends[-1][-1] == most
    assert [first for first, *_ in ends[1:]] == [each[-1] + 1 for each in ends[:-1]]
    assert drawn.squares[0].tone == drawn.legend[-1][0]


@pytest.mark.parametrize(
    "grid",
    [
        None,
        {},
        "grid",
        {**GRID, "size": 0},
        {**GRID, "size": float("nan")},
        {**GRID, "cells": []},
        {**GRID, "cells": [[5, 94, 1]]},
        {**GRID, "x": [0, 10**9], "cells": [[0, 94, 1]]},
        {**GRID, "cells": [["a", 94, 1]]},
    ],
)
def test_nothing_is_drawn_when_it_is_not_a_grid(grid: Any) -> None:
    assert grid_picture(grid) is None
