"""Charts over time: what stands beside the picture."""

from __future__ import annotations

import pytest

from include.monitor.history.plot import HEIGHT, Series, Trend


def trend(*values: float | None) -> Trend:
    return Trend("rows", "Rows", "rows", "", "lines", (Series("rows", values),))


def test_value_is_written_once_beside_the_middle_when_it_never_changes() -> None:
    plot = trend(2862, None, 2862).plot
    assert (plot.top, plot.bottom) == ("2,862", "")
    assert {y for _, _, y in plot.dots} == {HEIGHT / 2}


@pytest.mark.parametrize(
    ("values", "top", "bottom"),
    [((0.25, 0.5), "0.5", "0.25"), ((12.5, 9154.74), "9,155", "12.5"), ((0, 7), "7", "0")],
)
def test_largest_and_smallest_value_are_written_when_values_differ(
    values: tuple[float, float], top: str, bottom: str
) -> None:
    plot = trend(*values).plot
    assert (plot.top, plot.bottom) == (top, bottom)
