"""Which timestamps end an interval, judged without a broker."""

from __future__ import annotations

import random

import pytest

from include.kafka.timestamps import NEIGHBOURS, Boundary, RecordTime, TimestampRule, find_boundary
from include.offsets import TopicPartition

TP = TopicPartition("t", 0)
MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 1_800_000_000_000
BEGIN = NOW - 100 * HOUR
UNCOMMITTED = TimestampRule(NOW, lambda _, __: None)


def times(*hours: float) -> list[RecordTime]:
    return [RecordTime(offset, BEGIN + int(each * HOUR)) for offset, each in enumerate(hours)]


def boundary(hours: list[float], at: float, rule: TimestampRule = UNCOMMITTED) -> Boundary:
    return find_boundary(TP, times(*hours), BEGIN + int(at * HOUR), len(hours), rule)


def test_first_record_at_or_after_the_time_ends_the_interval_when_records_are_minutes_out_of_order() -> None:
    chosen = random.Random(1)
    hours = [number / 500 + chosen.uniform(-0.1, 0.1) for number in range(2000)]
    for at in (1, 2, 3):
        assert boundary(hours, at) == Boundary(next(o for o, each in enumerate(hours) if each >= at))


@pytest.mark.parametrize("run", [1, 2, NEIGHBOURS // 4])
@pytest.mark.parametrize("ahead", [2, 24, 90], ids=["hours", "a day", "days"])
def test_no_interval_ends_when_a_run_of_records_is_ahead_of_those_that_follow(run: int, ahead: int) -> None:
    hours = [number / 100 for number in range(50)] + [0.5 + ahead] * run + [number / 100 for number in range(50, 200)]
    assert boundary(hours, 1) == Boundary(100 + run, run, times(*hours)[50])


def test_run_of_any_length_ends_no_interval_when_it_is_ahead_of_the_clock() -> None:
    hours = [0.5] * 10 + [200.0] * 1000 + [0.6] * 10 + [1.5] * 10
    assert boundary(hours, 1) == Boundary(1020, 1000, RecordTime(10, BEGIN + 200 * HOUR))
    assert boundary([0.5, 200.0], 1) == Boundary(2, 1, RecordTime(1, BEGIN + 200 * HOUR))


def test_run_of_any_length_ends_no_interval_when_it_was_ahead_of_its_commit() -> None:
    hours = [0.5] * 10 + [24.5] * 1000 + [0.6] * 10 + [1.5] * 10
    committed = TimestampRule(NOW, lambda _, offset: BEGIN + HOUR if offset < 1020 else BEGIN + 2 * HOUR)
    assert boundary(hours, 1, committed) == Boundary(1020, 1000, RecordTime(10, BEGIN + int(24.5 * HOUR)))


def test_records_of_now_end_their_intervals_when_most_records_are_refilled_history() -> None:
    chosen = random.Random(2)
    hours = [number / 1000 if chosen.random() < 0.3 else -900.0 for number in range(5000)]
    at = boundary(hours, 2)
    first = next(offset for offset, each in enumerate(hours) if each >= 2)
    assert 0 <= at.offset - first < 100


def test_nothing_is_judged_when_timestamps_are_before_1971() -> None:
    hours = [0.5, 1.5, *[-BEGIN / HOUR] * 100, 1.6]
    assert boundary(hours, 1) == Boundary(1)


def test_odd_timestamp_does_not_count_when_it_is_that_of_the_first_record_behind_the_end() -> None:
    assert find_boundary(TP, times(0.5, 200.0, 0.6), BEGIN + HOUR, 1, UNCOMMITTED) == Boundary(1)


def test_window_has_not_reached_a_time_when_none_of_its_timestamps_is_one() -> None:
    assert not UNCOMMITTED.has_reached(BEGIN, [])
    assert not UNCOMMITTED.has_reached(BEGIN, [RecordTime(offset, -1) for offset in range(NEIGHBOURS)])
    assert UNCOMMITTED.has_reached(BEGIN + HOUR, times(0.5))


@pytest.mark.parametrize("odd", [-1, 0, 1_700_000_000, 4_000_000_000_000])
def test_log_begins_where_others_confirm_it_when_its_first_timestamp_is_odd(odd: int) -> None:
    assert UNCOMMITTED.beginning([RecordTime(0, odd), *times(*[n / 100 for n in range(30)])]) == BEGIN


def test_log_begins_with_its_earliest_record_when_its_first_are_out_of_order() -> None:
    assert UNCOMMITTED.beginning(times(1.5, 0.1, 2.1, 0.9)) == BEGIN + HOUR // 10
    assert UNCOMMITTED.beginning(times(-50_000)) == BEGIN - 50_000 * HOUR
    assert UNCOMMITTED.beginning(times(*range(33))) == BEGIN
    assert UNCOMMITTED.beginning([]) is None


@pytest.mark.parametrize("seed", range(200))
def test_intervals_end_as_without_them_when_there_are_odd_timestamps(seed: int) -> None:
    chosen = random.Random(seed)
    true_hours = [number / 40 + chosen.uniform(-0.05, 0.05) for number in range(chosen.randrange(60, 300))]
    hours, true_offset = [], []
    for number, each in enumerate(true_hours):
        if number % 20 == 10:
            hours.extend(each + chosen.choice((3, 30, 90, 1_000_000)) for _ in range(chosen.randrange(4)))
        true_offset.append(len(hours))
        hours.append(each)
    at, odd = 0, 0
    # Near the end of the log, too few records follow to tell which of two is odd.
    for number in range(1, int(max(true_hours) - 1) + 1):
        found = find_boundary(TP, times(*hours)[at:], BEGIN + number * HOUR, len(hours), UNCOMMITTED)
        assert found.offset == true_offset[next(o for o, each in enumerate(true_hours) if each >= number)]
        assert found.offset >= at
        at, odd = found.offset, odd + found.odd_count
    assert odd <= len(hours) - len(true_hours)
