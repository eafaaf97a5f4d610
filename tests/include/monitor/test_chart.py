"""The chart of an interval's report: that its numbers are those of the data."""

from __future__ import annotations

from typing import Any

import pytest

from include.monitor.chart import MAX_SERIES, chart

TEN_MINUTES = ["2026-11-20 05:00", "2026-11-20 05:10", "2026-11-20 05:20"]


def data(x: list[str], keys: int = 1, **others: Any) -> dict[str, Any]:
    series = [{"name": f"k{n}", "values": [100 - n for _ in x]} for n in range(keys)]
    return {"title": "t", "unit": "hits", "x": x, "series": series, **others}


def test_all_is_the_sum_of_all_keys_when_the_chart_has_a_series_of_the_largest_only() -> None:
    drawn = chart(data(TEN_MINUTES, 6, others={"keys": 4, "values": [400, 300, None]}))
    assert drawn is not None
    # The last series of its own is added to those that have none.
    assert drawn.columns == ("Window", "k0", "k1", "k2", "k3", "k4", "5 others", "All")
    assert [(row[-2], row[-1]) for row in drawn.table] == [("495", "985"), ("395", "885"), ("95", "585")]
    assert len(drawn.legend) == MAX_SERIES


def test_summary_names_the_largest_windows_when_windows_overlap() -> None:
    series = [{"name": "94103", "values": [60, 120, 60]}, {"name": "10001", "values": [5, 5, 30]}]
    drawn = chart({"title": "t", "unit": "hits", "x": TEN_MINUTES, "series": series})
    assert drawn is not None
    assert drawn.summary == "Bar chart over 05:00 to 05:20. Largest, each with its highest window: 94103 120, 10001 30."
    one = chart(data(TEN_MINUTES[:1], 2))
    assert one is not None
    assert one.summary == "Bar chart over 05:00 to 05:00. Largest, each with its highest window: k0 100, k1 99."


def test_others_are_the_last_row_when_they_are_more_than_any_key() -> None:
    drawn = chart(data(TEN_MINUTES[:1], 6, others={"keys": 1, "values": [5000]}))
    assert drawn is not None
    assert [(row.name, row.values) for row in drawn.rows[-2:]] == [("k5", ("95",)), ("1 other", ("5,000",))]


@pytest.mark.parametrize("others", [{"(erased)": 4, "values": [1]}, {"keys": "(erased)", "(erased)": [1]}])
def test_chart_is_drawn_when_an_earlier_erasure_has_replaced_a_name_in_it(others: dict[str, Any]) -> None:
    drawn = chart(data(TEN_MINUTES, 2, others=others))
    assert drawn is not None
    assert drawn.columns[:3] == ("Window", "k0", "k1")


def test_windows_before_the_drawn_ones_are_left_out_of_the_others_too() -> None:
    x = [f"2026-11-20 {minute // 60:02}:{minute % 60:02}" for minute in range(60)]
    drawn = chart(data(x, 6, others={"keys": 1, "values": list(range(60))}))
    assert drawn is not None
    assert [row[-2] for row in drawn.table] == [str(95 + minute) for minute in range(12, 60)]


@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (["2026-11-20 05:00:00", "2026-11-20 05:00:10", "2026-11-20 05:00:20"], ("05:00:00", "05:00:10", "05:00:20")),
        (["2026-11-20 05:00:00", "2026-11-20 05:10:00", "2026-11-20 05:20:00"], ("05:00", "05:10", "05:20")),
        (["2026-11-20T23:59:30Z", "2026-11-21T00:00:00Z", "2026-11-21T00:00:30Z"],
         ("11-20 23:59:30", "11-21 00:00:00", "11-21 00:00:30")),
        # Not of UTC: as they are.
        (["2026-11-20T05:00+05:00"] * 3, ("2026-11-20T05:00+05:00",) * 3),
    ],
)  # fmt: skip
def test_labels_of_windows_differ_when_these_begin_in_the_same_minute(x: list[str], labels: tuple[str, ...]) -> None:
    drawn = chart(data(x))
    assert drawn is not None
    assert drawn.labels == labels
