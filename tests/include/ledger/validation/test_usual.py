"""What is usual comes from the registered intervals before one, and from no others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.ledger.database import session
from include.ledger.intervals import attempts
from include.ledger.models import Revision
from include.ledger.validation import usual
from include.ledger.validation.usual import PastInterval, past_intervals
from include.times import Interval
from tests.support.attempts import begin_attempt, hour, note_build, register

pytestmark = pytest.mark.services


def registered(pipeline: str, interval: int | Interval, *, rows: int, newest: str | None) -> None:
    """Register an interval, or an hour, with this many rows in one file, whose newest row has this time."""
    attempt = begin_attempt(pipeline, hour(interval) if isinstance(interval, int) else interval)
    built = note_build(attempt, rows=rows)
    register(attempt, built)
    with session() as ledger:
        row = ledger.get_one(Revision, (built.revision, built.table, built.partition))
        row.files = {"a.parquet": {"event_time": ["2026-11-20T05:00:00.000000Z", newest]} if newest else {}}


def test_rows_and_age_are_those_of_earlier_registered_intervals_when_bounds_are_computed(pipeline: str) -> None:
    registered(pipeline, 0, rows=10, newest="2026-11-20T05:59:30.500000Z")
    registered(pipeline, 1, rows=20, newest=None)
    # One that was built but not registered, and one that is not earlier.
    note_build(begin_attempt(pipeline, hour(2)), rows=30)
    registered(pipeline, 3, rows=40, newest="2026-11-20T08:00:00.000000Z")
    assert past_intervals(pipeline, pipeline, hour(3)) == [
        PastInterval(20, None),
        PastInterval(10, timedelta(seconds=29.5)),
    ]
    assert past_intervals(pipeline, "another table", hour(1)) == [PastInterval(0, None)]
    assert past_intervals(pipeline, pipeline, hour(0)) == []


def test_newest_row_is_not_known_when_its_year_is_one_that_python_does_not_know(pipeline: str) -> None:
    registered(pipeline, 0, rows=10, newest="+12345-11-20T05:59:30.500000Z")
    assert past_intervals(pipeline, pipeline, hour(1)) == [PastInterval(10, None)]


def test_latest_intervals_are_looked_at_when_there_are_many(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual, "MOST", 2)
    for number in range(4):
        registered(pipeline, number, rows=10 + number, newest=None)
    assert [each.rows for each in past_intervals(pipeline, pipeline, hour(4))] == [13, 12]


def test_only_intervals_of_its_length_are_usual_when_the_schedule_was_changed(pipeline: str) -> None:
    registered(pipeline, 0, rows=10, newest=None)
    quarter = Interval(hour(1).from_time, hour(1).from_time + timedelta(minutes=15))
    registered(pipeline, quarter, rows=3, newest=None)
    next_quarter = Interval(quarter.to_time, quarter.to_time + timedelta(minutes=15))
    assert past_intervals(pipeline, pipeline, next_quarter) == [PastInterval(3, None)]
    assert past_intervals(pipeline, pipeline, hour(2)) == [PastInterval(10, None)]


def test_interval_is_not_usual_when_it_failed(pipeline: str) -> None:
    attempt = begin_attempt(pipeline, hour(0))
    note_build(attempt)
    attempts.end_attempt(attempt, 2, {})
    assert past_intervals(pipeline, pipeline, hour(1)) == []
