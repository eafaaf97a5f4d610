from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.errors import UsageError
from include.times import (
    Interval,
    Schedule,
    describe_duration,
    every,
    format_time,
    hourly,
    in_words,
    parse_duration,
    parse_time,
    time_or_none,
)

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
    assert parse_time(format_time(moment)) == time_or_none(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-20T05:00:00+01:00", "05:00", "10000-01-01"])
def test_time_is_refused_when_malformed_or_in_another_zone(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_time(text)
    assert raised.value.exit_code == 64
    assert time_or_none(text) is None


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("50m", 3000), ("3h", 10800), ("30d", 2_592_000)])
def test_duration_is_read_when_it_has_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "h", "-3h", "3 hours", "1h30m", "36526d", "99999999999999h", f"{'9' * 5000}s"]
)
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


def test_interval_is_refused_when_its_year_is_mistyped() -> None:
    with pytest.raises(UsageError, match=r"begins at 0026-11-20T08:00:00Z, and Kafka's timestamps in 1970"):
        hourly().interval(parse_time("0026-11-20T08:00:00Z"), parse_time("0026-11-20T09:00:00Z"), now=NOW)
    assert hourly().labelled("0026-11-20T08") is None
    first = hourly().interval(parse_time("1970-01-01T00:00:00Z"), parse_time("1970-01-01T01:00:00Z"), now=NOW)
    assert hourly().labelled(first.label) == first


def test_labels_differ_when_intervals_are_shorter_than_an_hour() -> None:
    schedule = Schedule(timedelta(minutes=30))
    first = Interval(NOW, NOW + schedule.every)
    second = Interval(NOW + schedule.every, NOW + 2 * schedule.every)
    assert first.label != second.label


@pytest.mark.parametrize(
    ("duration", "cron"),
    [
        ("1m", "*/1 * * * *"),
        ("15m", "*/15 * * * *"),
        ("30m", "*/30 * * * *"),
        ("60m", "0 */1 * * *"),
        ("1h", "0 */1 * * *"),
        ("6h", "0 */6 * * *"),
        ("12h", "0 */12 * * *"),
        ("24h", "0 0 * * *"),
        ("1d", "0 0 * * *"),
    ],
)
def test_schedule_has_the_boundaries_of_its_cron_expression_when_cron_can_say_it(duration: str, cron: str) -> None:
    schedule = every(duration)
    assert schedule.cron == cron
    moment = NOW.replace(hour=0, minute=0)
    boundaries = {moment + n * schedule.every for n in range(timedelta(days=1) // schedule.every)}
    minute, hour = cron.split()[:2]
    minutes = range(0, 60, int(minute[2:])) if minute.startswith("*/") else [0]
    hours = range(0, 24, int(hour[2:] or 1)) if hour.startswith("*/") else range(24) if hour == "*" else [0]
    assert boundaries == {moment.replace(hour=h, minute=m) for h in hours for m in minutes}


@pytest.mark.parametrize("duration", ["0m", "7m", "30s", "90s", "45m", "90m", "5h", "16h", "36h", "2d", "7d"])
def test_schedule_is_refused_when_cron_cannot_say_it(duration: str) -> None:
    with pytest.raises(UsageError, match=r"cron cannot say a schedule of every .* whole minutes that divide an hour"):
        every(duration)


@pytest.mark.parametrize("length", [timedelta(minutes=-15), timedelta(minutes=7, seconds=30), timedelta(hours=1.5)])
def test_schedule_is_refused_when_it_is_wrong_however_it_is_made(length: timedelta) -> None:
    with pytest.raises(UsageError, match="cron cannot say"):
        Schedule(length)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0s", "0 seconds"),
        ("1s", "1 second"),
        ("30s", "30 seconds"),
        ("60s", "1 minute"),
        ("10m", "10 minutes"),
        ("90m", "90 minutes"),
        ("120m", "2 hours"),
        ("1h", "1 hour"),
        ("24h", "1 day"),
        ("30d", "30 days"),
    ],
)
def test_largest_whole_unit_is_used_when_spark_gets_a_duration(text: str, words: str) -> None:
    assert in_words(text) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.5, "0 seconds"),
        (61, "1 minute 1 second"),
        (3600, "1 hour"),
        (2 * 86400 + 3 * 3600 + 5, "2 days 3 hours"),
    ],
)
def test_two_largest_units_are_used_when_a_duration_is_described(seconds: float, words: str) -> None:
    assert describe_duration(timedelta(seconds=seconds)) == words
