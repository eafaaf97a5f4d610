"""Restarts of a stream: how long they wait, when they end, and when a stream that lives does nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.airflow.backoff import delay_after, is_hopeless
from include.airflow.progress import Progress, patience_after
from include.monitor.lag import STALLED_AFTER, Lag

MINUTE = 60.0


def test_delay_doubles_up_to_five_minutes_when_failures_follow_each_other() -> None:
    assert [delay_after(n).total_seconds() for n in (0, 1, 2, 3, 6, 7, 100)] == [5, 5, 10, 20, 160, 300, 300]


@pytest.mark.parametrize(
    ("failures", "hopeless"),
    [
        ([], False),
        ([4, 4], False),
        ([4, 4, 4], True),
        ([64, 4, 2], True),
        ([4, 4, 6, 4], False),
        # Killed, a service away: a restart may help, however often it did not.
        ([None, 4, 4, 4], False),
        ([6] * 20, False),
    ],
)
def test_restarting_is_given_up_when_three_final_failures_follow_each_other(
    failures: list[int | None], hopeless: bool
) -> None:
    assert is_hopeless(failures) is hopeless


def lags(archive: tuple[int, int], view: tuple[int, int]) -> list[Lag]:
    return [
        Lag("nest_cameras", query, "nest-logs", 0, committed, end)
        for query, (committed, end) in {"archive": archive, "hourly_counts": view}.items()
    ]


def test_query_is_stalled_when_input_waits_and_it_commits_nothing_for_the_declared_time() -> None:
    progress = Progress(after=timedelta(minutes=10))
    assert progress.stalled(lags((5, 9), (9, 9)), 0.0) is None
    assert progress.stalled(lags((5, 50), (50, 50)), 9 * MINUTE) is None
    assert progress.stalled(lags((5, 99), (99, 99)), 11 * MINUTE) == "archive"


def test_patience_doubles_when_drivers_in_a_row_were_ended_before_their_first_commit() -> None:
    assert patience_after(0) == STALLED_AFTER
    after_two = Progress(patience_after(2))
    assert after_two.stalled(lags((5, 9), (9, 9)), 0.0) is None
    assert after_two.stalled(lags((5, 50), (50, 50)), 39 * MINUTE) is None
    assert after_two.stalled(lags((5, 50), (50, 50)), 41 * MINUTE) == "archive"
    # What works has shown that it needs no longer than others.
    moved = Progress(patience_after(2))
    assert moved.stalled(lags((5, 9), (9, 9)), 0.0) is None
    assert moved.stalled(lags((6, 50), (50, 50)), 30 * MINUTE) is None
    assert moved.stalled(lags((6, 50), (50, 50)), 39 * MINUTE) is None
    assert moved.stalled(lags((6, 50), (50, 50)), 41 * MINUTE) == "archive"
    assert patience_after(6) == patience_after(60) < timedelta(hours=12)


def test_query_is_not_stalled_when_it_commits_though_it_never_catches_up() -> None:
    progress = Progress(after=timedelta(minutes=10))
    for minute in range(60):
        assert progress.stalled(lags((minute, 1000), (1000, 1000)), minute * MINUTE) is None


def test_query_is_not_stalled_when_input_comes_after_a_long_silence() -> None:
    progress = Progress(after=timedelta(minutes=10))
    for minute in range(60):
        assert progress.stalled(lags((9, 9), (9, 9)), minute * MINUTE) is None
    assert progress.stalled(lags((9, 20), (9, 20)), 60 * MINUTE) is None
    assert progress.stalled(lags((20, 20), (9, 20)), 71 * MINUTE) == "hourly_counts"
