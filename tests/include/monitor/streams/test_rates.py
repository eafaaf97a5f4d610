"""Plots of a query's progress: within their frame, with a scale, and none where nothing can be drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.streams.progress import QueryProgress
from include.monitor.streams.rates import HEIGHT, WIDTH, query_rates

FIRST = QueryProgress(
    "archive", 0, datetime(2026, 11, 20, 5, tzinfo=UTC), 100, 50.0, 200.0, 1.0, {"addBatch": 0.75, "walCommit": 0.25}
)


def test_lines_lie_in_their_frame_and_share_a_scale_when_they_are_drawn() -> None:
    told = [replace(FIRST, at=FIRST.at + timedelta(seconds=2 * n), input_rate=50.0 * n) for n in range(5)]
    plot = query_rates("archive", told, None).rates
    assert plot is not None
    arriving, worked_off = ([tuple(map(float, p.split(","))) for p in line.points.split()] for line in plot.lines)
    assert [x for x, _ in arriving] == [0, 150, 300, 450, WIDTH]
    assert [y for _, y in arriving] == [HEIGHT, 75, 50, 25, 0]
    assert {y for _, y in worked_off} == {0}
    assert plot.summary == "Records per second: arriving 200, worked off 200; at most 200"


def test_nothing_is_drawn_when_there_is_one_point() -> None:
    rates = query_rates("archive", [FIRST], None)
    assert (rates.rates, rates.durations) == (None, None)


def test_parts_fill_the_bar_when_small_ones_are_summed_up() -> None:
    parts = {f"part{n}": 0.1 * (n + 1) for n in range(9)}
    drawn = query_rates("archive", [replace(FIRST, parts=parts)], None).parts
    assert [part.name for part in drawn] == ["part8", "part7", "part6", "part5", "part4", "other parts"]
    assert abs(sum(part.width for part in drawn) - WIDTH) < 0.1


def test_parts_are_of_the_last_micro_batch_with_data_when_later_ones_have_none() -> None:
    later = FIRST.at + timedelta(seconds=10)
    idle = replace(FIRST, batch_id=1, at=later, input_rows=0, parts={"latestOffset": 0.01}, seconds=0.01)
    rates = query_rates("archive", [FIRST, idle], None)
    assert [part.name for part in rates.parts] == ["addBatch", "walCommit"]
    assert (rates.seconds, rates.timed_batch_id, rates.batch_id) == (1.0, 0, 1)


@pytest.mark.parametrize(("age", "is_current"), [(timedelta(0), True), (timedelta(seconds=1), False)])
def test_rates_are_an_earlier_driver_s_when_the_lease_was_taken_after_them(age: timedelta, is_current: bool) -> None:
    assert query_rates("archive", [FIRST], FIRST.at + age).is_current is is_current
    assert not query_rates("archive", [FIRST], None).is_current


def test_delay_is_counted_from_the_micro_batch_when_there_is_a_watermark() -> None:
    late = replace(FIRST, watermark=FIRST.at - timedelta(hours=1))
    assert query_rates("hourly_counts", [late], None).watermark_delay == 3600
