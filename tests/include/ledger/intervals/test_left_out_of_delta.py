"""Registered intervals that the Delta table lacks, however its publications ended; over a real ledger."""

from __future__ import annotations

import pytest

from include.ledger.intervals import attempts, builds, locks
from include.ledger.intervals.findings import DeltaVersion
from include.ledger.intervals.revisions import left_out_of_delta, note_in_delta
from include.times import Interval
from tests.support.attempts import build_and_register, hour

pytestmark = pytest.mark.services


def publish(pipeline: str, number: int, delta: int | None, *, ends: bool = True) -> int:
    """Return the interval's number."""
    attempt = build_and_register(pipeline, hour(number))
    if delta is not None:
        builds.note_delta(attempts.load_attempt(attempt), DeltaVersion("lake.view", delta))
    if ends:
        attempts.end_attempt(attempt, 0, {})
    return attempts.load_attempt(attempt).pinned.id


def left_out(pipeline: str, own: int | None = None) -> list[Interval]:
    return [each.interval for each in left_out_of_delta(pipeline, own)]


def put(pipeline: str) -> None:
    note_in_delta(build for each in left_out_of_delta(pipeline) for build in each.builds)


def test_interval_is_left_out_until_it_is_noted_when_it_was_registered_without_the_delta_table(pipeline: str) -> None:
    publish(pipeline, 1, None)
    publish(pipeline, 0, None)
    publish(pipeline, 2, 1)
    publish(f"{pipeline}_other", 3, None)
    assert left_out(pipeline) == [hour(0), hour(1)]
    put(pipeline)
    assert left_out(pipeline) == []


def test_interval_stays_left_out_when_its_publication_died_and_later_ones_have_the_table(pipeline: str) -> None:
    publish(pipeline, 0, 1)
    publish(pipeline, 1, None, ends=False)
    publish(pipeline, 2, 2)
    publish(pipeline, 3, 3)
    assert left_out(pipeline) == [hour(1)]
    put(pipeline)
    assert left_out(pipeline) == []


def test_interval_is_left_to_its_attempt_while_that_is_under_way(pipeline: str) -> None:
    publish(pipeline, 0, 1)
    own = publish(pipeline, 1, None, ends=False)
    with locks.attempt_under_way(pipeline, hour(1)):
        assert left_out(pipeline) == []
        assert left_out(pipeline, own) == [hour(1)]
    assert left_out(pipeline) == [hour(1)]


def test_interval_is_left_out_again_when_another_build_is_registered_while_its_rows_are_put(pipeline: str) -> None:
    publish(pipeline, 0, None)
    (read,) = left_out_of_delta(pipeline)
    publish(pipeline, 0, None)
    note_in_delta(read.builds)
    assert left_out(pipeline) == [hour(0)]
    # A later build that is noted speaks for the others, which it replaced.
    publish(pipeline, 0, 2)
    put(pipeline)
    assert left_out(pipeline) == []
