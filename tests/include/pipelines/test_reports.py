"""What the declaration of a report refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Grid, Listing

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


@pytest.mark.parametrize("kind", ["BYTE", "SHORT", "LONG", "REAL", "DEC(9, 2)", "numeric", "INTEGER NOT NULL"])
def test_grid_is_accepted_when_its_numbers_are_declared_by_other_names(kind: str) -> None:
    archive = replace(GPS.archive, columns=f"{GPS.archive.columns}, x {kind}, y {kind}")
    assert replace(GPS, archive=archive, reports=(Grid("Map", x="x", y="y"),)).reports


@pytest.mark.parametrize("kind", ["INTEGER", "long"])
def test_report_is_watched_when_its_key_is_declared_by_another_name_of_a_whole_number(kind: str) -> None:
    archive = replace(GPS.archive, columns=f"{GPS.archive.columns}, n {kind}, is_up BOOLEAN")
    report = Listing("Down", rows="down", columns=("n",), key=("n",), notify="down", up="is_up")
    assert replace(GPS, archive=archive, reports=(report,)).watched_reports == [report]
