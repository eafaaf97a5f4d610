"""Waiting for an answer that is ready at once, later or never."""

from __future__ import annotations

import pytest

from include import waiting
from include.waiting import wait_for


class Clock:
    """Time that passes only while it is waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(waiting, "time", stopped)
    return stopped


@pytest.mark.parametrize("seconds", [60, 0, -1])
def test_answer_is_returned_at_once_when_it_is_ready(clock: Clock, seconds: float) -> None:
    assert wait_for(lambda: "ready", seconds=seconds) == "ready"
    assert clock.now == 0


def test_first_ready_answer_is_returned_when_it_comes_later(clock: Clock) -> None:
    answers = iter([1, 2, 3, 4])
    assert wait_for(lambda: next(answers), lambda answer: answer > 2, seconds=60, every=5) == 3
    assert clock.now == 10


@pytest.mark.parametrize(("every", "last"), [(1, 3), (2.5, 5), (60, 60)])
def test_last_answer_is_returned_when_none_is_ready(clock: Clock, every: float, last: float) -> None:
    """It is asked once more when the time is over, so also where a single wait takes all of it."""
    assert wait_for(lambda: clock.now, lambda _: False, seconds=3, every=every) == last


def test_it_is_asked_once_when_there_is_no_time(clock: Clock) -> None:
    asked: list[float] = []
    assert wait_for(lambda: asked.append(clock.now), seconds=0) is None
    assert asked == [0]
