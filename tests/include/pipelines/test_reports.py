"""What the declaration of a report refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Grid

GPS = load_pipeline("gps_positions")


@pytest.mark.parametrize(("x", "y"), [("longitude", "north"), ("timestamp", "latitude"), ("", "")])
def test_grid_is_refused_when_its_columns_are_not_two_numeric_ones(x: str, y: str) -> None:
    with pytest.raises(UsageError, match=f"report 'Map' has a grid over '{x}' and '{y}'") as refused:
        replace(GPS, reports=(Grid("Map", x=x, y=y),))
    assert "deviceId, latitude, longitude, altitude, speed, accuracy" in refused.value.remedy


@pytest.mark.parametrize("cells", [0, -1, 101])
def test_grid_is_refused_when_it_has_no_cells_or_too_many(cells: int) -> None:
    with pytest.raises(UsageError, match=f"a grid of {cells} cells"):
        Grid("Map", x="longitude", y="latitude", cells=cells)
