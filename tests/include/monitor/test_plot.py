"""Charts over time: what stands beside the picture."""

from __future__ import annotations

import re

import pytest

from include.monitor.history.plot import HEIGHT, Series, Trend
from include.monitor.web.pages import environment


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


def test_single_value_is_drawn_as_a_dot_in_the_colour_of_its_series() -> None:
    series = (Series("a", (1.0, None, 2.0)), Series("gaps", (None, 4.0, None), "gaps"))
    drawn_of = Trend("key", "title", "unit", "", "lines", series)
    template = '{% import "history.html" as history with context %}{{ history.picture(trend) }}'
    drawn = environment().from_string(template).render(trend=drawn_of)
    dots = re.findall(r'<polyline class="dot (\w+)" points="(\S+) (\S+)"/>', drawn)
    assert [tone for tone, *_ in dots] == ["t0", "t0", "gaps"]
    assert all(begin == end for _, begin, end in dots)
