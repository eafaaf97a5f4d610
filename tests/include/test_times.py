from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.errors import UsageError
from include.times import Interval, Schedule, format_time, hourly, parse_duration, parse_time

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T05:00:00Z", datetime(2026, 11, 20, 5, tzinfo=UTC)),
        ("2026-11-20T05:00", datetime(2026, 11, 20, 5, tzinfo=UTC)),
        ("2026-11-20T05:00:00+00:00", datetime(2026, 11, 20, 5, tzinfo=UTC)),
    ],
)
def test_time_is_utc_when_written_in_iso(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
    assert parse_time(format_time(moment)) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-20T05:00:00+01:00", "05:00"])
def test_time_is_refused_when_malformed_or_in_another_zone(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_time(text)
    assert raised.value.exit_code == 64


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("50m", 3000), ("3h", 10800), ("30d", 2_592_000)])
def test_duration_is_read_when_it_has_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "10", "h", "-3h", "3 hours", "1h30m"])
def test_duration_is_refused_when_malformed(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


def test_interval_is_accepted_when_it_is_one_past_step_of_the_schedule() -> None:
    interval = hourly().interval(NOW.replace(hour=8, minute=0), NOW.replace(hour=9, minute=0), now=NOW)
    assert interval.label == "2026-11-20T08"


@pytest.mark.parametrize(
    ("start", "end"),
    [("08:30", "09:30"), ("07:00", "09:00"), ("09:00", "10:00"), ("09:00", "08:00"), ("08:00", "08:00")],
)
def test_interval_is_refused_when_off_the_schedule_or_not_past(start: str, end: str) -> None:
    with pytest.raises(UsageError):
        hourly().interval(parse_time(f"2026-11-20T{start}:00Z"), parse_time(f"2026-11-20T{end}:00Z"), now=NOW)


def test_labels_differ_when_intervals_are_shorter_than_an_hour() -> None:
    schedule = Schedule(timedelta(minutes=30))
    first = Interval(NOW, NOW + schedule.every)
    second = Interval(NOW + schedule.every, NOW + 2 * schedule.every)
    assert first.label != second.label


def test_schedule_is_refused_when_it_does_not_divide_a_day() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        Schedule(timedelta(minutes=7))
