"""`./tidemark ranges`: which of the pinned intervals it lists."""

from __future__ import annotations

import pytest

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
