"""The calendar of intervals over a real ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.validation import approvals
from include.monitor.history.calendar import Attention, Calendar, CellState, read_calendar
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.times import Interval
from tests.conftest import Home, last_hours
from tests.support.attempts import begin_attempt, note_build, register

pytestmark = pytest.mark.services

WARNED = ExpectationResult("t", "expect_set", "kind", "kind is a", False, "1 %", 1, severity="warn")


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline of this test alone."""
    number = sorted(each.name for each in request.session.items).index(request.node.name)
    return replace(load_pipeline("isp_hits"), name=f"calendar_{number}")


def past_hour(ago: int) -> Interval:
    """The hour that began so many whole hours before the current one."""
    return Interval(last_hours(ago), last_hours(ago - 1))


def calendar_of(pipeline: Pipeline) -> Calendar:
    return read_calendar([pipeline], now=datetime.now(UTC))


def state_of(pipeline: Pipeline, interval: Interval) -> CellState:
    (strip, *_) = calendar_of(pipeline).strips
    (found,) = (cell.state for day in strip.days for cell in day.cells if cell.label == interval.label)
    return found


def attention_of(pipeline: Pipeline, interval: Interval) -> Attention | None:
    return next((each for each in calendar_of(pipeline).attention if each.label == interval.label), None)


def announced(pipeline: Pipeline, interval: Interval, *, code: int = 0) -> int:
    """Build an interval in an attempt that is announced with this exit code; return the attempt."""
    attempt = begin_attempt(pipeline.name, interval)
    built = note_build(attempt)
    if code == 0:
        register(attempt, built)
    attempts.end_attempt(attempt, code, {})
    return attempt


def rebuild(attempt: int, *, code: int) -> None:
    """Build the attempt's interval again for comparison, as the command does."""
    pinned = attempts.load_attempt(attempt).pinned
    again = attempts.begin_attempt(pinned, run_by=attempts.REBUILD, code_version="1a2b3c", source="kafka")
    if code == 0:
        note_build(again)
    attempts.close_attempt(again, code)


def test_interval_stays_registered_when_a_build_for_comparison_fails(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    rebuild(announced(pipeline, hour), code=4)
    assert state_of(pipeline, hour) is CellState.REGISTERED
    assert attention_of(pipeline, hour) is None


def test_interval_stays_failed_when_a_build_for_comparison_succeeds(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    announced(pipeline, hour)
    rebuild(announced(pipeline, hour, code=3), code=0)
    assert state_of(pipeline, hour) is CellState.FAILED
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.meaning.startswith("exit code 3")


def test_question_stays_open_when_what_is_registered_is_built_for_comparison(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    announced(pipeline, hour)
    attempt = begin_attempt(pipeline.name, hour)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, pipeline.name, (WARNED,), question=question.id))
    attempts.end_attempt(attempt, 2, {})
    rebuild(attempt, code=0)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert f"--question {question.id}" in told.advice.command
