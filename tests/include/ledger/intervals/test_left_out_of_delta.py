"""Builds that were published while their pipeline declared no Delta table; over a real ledger."""

from __future__ import annotations

import pytest

from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import DeltaVersion
from include.ledger.intervals.revisions import is_left_out_of_delta
from tests.support.attempts import begin_attempt, hour, note_build, register

pytestmark = pytest.mark.services


def publish(pipeline: str, number: int, delta: int | None, *, ends: bool = True) -> None:
    attempt = begin_attempt(pipeline, hour(number))
    register(attempt, note_build(attempt))
    if delta is not None:
        builds.note_delta(attempts.load_attempt(attempt), DeltaVersion("lake.view", delta))
    if ends:
        attempts.end_attempt(attempt, 0, {})


def test_pinned_version_is_not_whole_when_an_interval_was_registered_without_the_delta_table(pipeline: str) -> None:
    publish(pipeline, 0, None)
    # There is no version yet: the first holds everything.
    assert not is_left_out_of_delta(pipeline)
    publish(pipeline, 1, 1)
    publish(pipeline, 2, 2)
    assert not is_left_out_of_delta(pipeline)
    publish(pipeline, 3, None)
    assert is_left_out_of_delta(pipeline)
    # It is found, and puts everything into the table again.
    publish(pipeline, 4, 3)
    assert not is_left_out_of_delta(pipeline)


def test_pinned_version_is_whole_when_others_are_about_to_put_their_rows_into_the_table(pipeline: str) -> None:
    publish(pipeline, 0, 1)
    publish(pipeline, 1, None, ends=False)
    publish(f"{pipeline}_other", 1, None)
    assert not is_left_out_of_delta(pipeline)
