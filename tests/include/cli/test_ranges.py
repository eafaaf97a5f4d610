"""`./tidemark ranges`: which of the pinned intervals it lists."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from include.ledger.intervals import pins
from include.monitor.history.drill import interval_of
from include.pipelines import load_pipeline
from include.times import parse_time
from tests.conftest import Home, iso
from tests.support.attempts import begin_attempt, hour

pytestmark = pytest.mark.services

NAME = "nest_cameras"


@pytest.fixture
def pinned(postgres: Home) -> Home:
    """Three hours are pinned."""
    for number in range(3):
        begin_attempt(NAME, hour(number))
    return postgres


@pytest.mark.parametrize(
    ("first", "end", "listed"),
    [
        (None, None, [0, 1, 2]),
        (1, None, [1]),
        (None, 2, [1]),
        (1, 2, [1]),
        (0, 2, [0, 1]),
        (0, 3, [0, 1, 2]),
        (2, 1, []),
    ],
)
def test_intervals_are_listed_that_lie_between_two_times_or_at_one(
    pinned: Home, first: int | None, end: int | None, listed: list[int]
) -> None:
    begin = [] if first is None else ["--from", iso(hour(first).from_time)]
    until = [] if end is None else ["--to", iso(hour(end).from_time)]
    found = {each["from"] for each in pinned.json("ranges", NAME, *begin, *until, "--json")}
    assert found == {iso(hour(number).from_time) for number in listed}


@pytest.fixture
def host_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process's zone is another one than UTC; the zone's name."""
    zone = "America/New_York"
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        yield zone
    time.tzset()


def test_times_labels_and_pins_are_in_utc_when_the_host_has_another_zone(postgres: Home, host_in_new_york: str) -> None:
    assert time.localtime(hour().from_time.timestamp()).tm_hour == 0
    begin_attempt(NAME)
    assert parse_time("2026-11-20T05:00") == hour().from_time
    pinned = pins.find_interval(NAME, parse_time("2026-11-20T05:00:00Z"))
    assert pinned is not None
    assert pinned.interval == hour()
    assert (pinned.interval.label, str(pinned.interval)) == (
        "2026-11-20T05",
        "2026-11-20T05:00:00Z/2026-11-20T06:00:00Z",
    )
    assert interval_of(load_pipeline(NAME), "2026-11-20T05") == hour()
    listed = postgres.json("ranges", NAME, "--from", "2026-11-20T05:00", "--json", TZ=host_in_new_york)
    assert {(each["from"], each["to"]) for each in listed} == {("2026-11-20T05:00:00Z", "2026-11-20T06:00:00Z")}
