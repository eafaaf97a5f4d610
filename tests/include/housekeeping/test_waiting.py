"""How long housekeeping waits for attempts that may be reading the files which it removes; no service is needed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.housekeeping import run
from include.pipelines import load_pipeline
from tests.support.attempts import hour

NEST = load_pipeline("nest_cameras")


def looks(monkeypatch: pytest.MonkeyPatch, under_way: list[set[int]], patience: timedelta) -> int:
    """How often it looks at the attempts, of which there are those of the list one after the other."""
    coming = iter(under_way)
    seen: list[set[int]] = []

    def look(_pipeline: str, _since: object) -> dict[int, object]:
        seen.append(next(coming))
        return dict.fromkeys(seen[-1], hour())

    monkeypatch.setattr(run, "attempts_under_way", look)
    monkeypatch.setattr(run, "_LOOK_AGAIN", 0.01)
    run._await_attempts(NEST, patience)
    return len(seen)


def test_it_begins_when_the_attempts_that_it_found_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, [{1, 2}, {1, 2}, {2, 3}, {3, 4}, set()], timedelta(minutes=1)) == 4


@pytest.mark.parametrize(("found", "patience"), [({1}, timedelta(0)), (set(), timedelta(minutes=1))])
def test_it_begins_at_once_when_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, found: set[int], patience: timedelta
) -> None:
    assert looks(monkeypatch, [found] * 3, patience) == 2


def test_it_begins_with_an_attempt_under_way_when_its_patience_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 < looks(monkeypatch, [{1}] * 1000, timedelta(seconds=0.1)) < 1000
