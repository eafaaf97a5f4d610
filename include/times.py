"""Times as users write them, and the interval: one Airflow data interval of a pipeline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from include.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""No record of Kafka has an earlier timestamp, so no interval begins before it."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 36_525 * 86400
_WORDS = {"day": 86400, "hour": 3600, "minute": 60}


def parse_time(text: str) -> datetime:
    """Return an ISO 8601 time in UTC, e.g. `2026-11-20T05:00:00Z`; a time without a zone is UTC.

    Raises UsageError when it is malformed or carries another zone.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"not a time: {text!r}", remedy="write it like 2026-11-20T05:00:00Z") from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    if moment.utcoffset() != timedelta(0):
        raise UsageError(f"not in UTC: {text!r}", remedy="write it like 2026-11-20T05:00:00Z")
    return moment.astimezone(UTC)


def time_or_none(text: str) -> datetime | None:
    """Return the time that `parse_time` reads; None for any other text, and for a year that Python does not have."""
    try:
        return parse_time(text)
    except UsageError:
        return None


def format_time(moment: datetime) -> str:
    """Return a time as commands and verdicts write it: `2026-11-20T05:00:00Z`, with microseconds if there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_of(milliseconds: int) -> datetime | None:
    """Return the time of a Kafka timestamp (since 1970); None for one beyond the calendar, which a producer may set."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def format_timestamp(milliseconds: int) -> str:
    """Return a Kafka timestamp as a time; in milliseconds if it lies beyond the calendar."""
    moment = time_of(milliseconds)
    return format_time(moment) if moment else f"{milliseconds} ms"


def parse_duration(text: str) -> timedelta:
    """Return a duration such as `10s`, `50m`, `3h`, `30d`. Raises UsageError for any other form, or above 100 years."""
    match = re.fullmatch(r"\s*(\d{1,12})\s*([smhd])\s*", text)
    if not match:
        raise UsageError(f"not a duration: {text!r}", remedy="write it like 10s, 50m, 3h or 30d")
    if (seconds := int(match[1]) * _UNITS[match[2]]) > _LONGEST:
        raise UsageError(f"too long a duration: {text!r}", remedy="36525d is the longest")
    return timedelta(seconds=seconds)


def in_words(duration: str) -> str:
    """Return a duration as Spark reads it, in the largest unit that it is a multiple of: `90m` is `90 minutes`."""
    seconds = int(parse_duration(duration).total_seconds())
    unit, length = next(((u, s) for u, s in _WORDS.items() if seconds and seconds % s == 0), ("second", 1))
    return f"{seconds // length} {unit}{'' if seconds == length else 's'}"


def describe_duration(duration: timedelta) -> str:
    """Return a duration in its two largest units, e.g. `3 days 2 hours`; `0 seconds` for less than a second."""
    seconds, parts = int(duration.total_seconds()), []
    for unit, length in {**_WORDS, "second": 1}.items():
        number, seconds = divmod(seconds, length)
        if number:
            parts.append(f"{number} {unit}{'' if number == 1 else 's'}")
    return " ".join(parts[:2]) or "0 seconds"


@dataclass(frozen=True, order=True)
class Interval:
    """A half-open stretch of time `[from_time, to_time)` in UTC."""

    from_time: datetime
    to_time: datetime

    @property
    def label(self) -> str:
        """The value of the partition column `interval`, e.g. `2026-11-20T05`.

        Minutes and seconds are written only where the interval does not begin on an hour (`2026-11-20T053000`).
        """
        on_the_hour = self.from_time.minute == 0 and self.from_time.second == 0
        return self.from_time.strftime("%Y-%m-%dT%H" if on_the_hour else "%Y-%m-%dT%H%M%S")

    def __str__(self) -> str:
        return f"{format_time(self.from_time)}/{format_time(self.to_time)}"


@dataclass(frozen=True)
class TimeWindow:
    """Windows of event time, aligned to the epoch in UTC; durations such as `10m`, `1h` and `1d`."""

    length: str
    slide: str = ""
    """How often a window begins; unset: where the previous one ends."""
    start: str = ""
    """How far the windows are shifted, e.g. `2m`: they begin two minutes past the hour."""

    def __post_init__(self) -> None:
        if not self.length_seconds or not self.slide_seconds or self.length_seconds % self.slide_seconds:
            raise UsageError(f"a slide of {self.slide or self.length} does not divide a window of {self.length}")
        if self.start_seconds >= self.slide_seconds:
            raise UsageError(
                f"windows that begin every {self.slide or self.length} cannot be shifted by {self.start}",
                remedy=f"a start below {self.slide or self.length}",
            )

    @property
    def length_seconds(self) -> int:
        """Length, seconds."""
        return _seconds(self.length)

    @property
    def slide_seconds(self) -> int:
        """From one window's start to the next one's, seconds."""
        return _seconds(self.slide or self.length)

    @property
    def start_seconds(self) -> int:
        """The shift, seconds."""
        return _seconds(self.start) if self.start else 0

    def tumbling(self) -> tuple[TimeWindow, ...]:
        """Return series in which each row lies in exactly one window: several series when the windows overlap."""
        starts = range(self.start_seconds, self.start_seconds + self.length_seconds, self.slide_seconds)
        return tuple(TimeWindow(self.length, "", f"{start}s") for start in starts)

    def __str__(self) -> str:
        slide = f" every {in_words(self.slide)}" if self.slide else ""
        return f"{in_words(self.length)}{slide}{f' from {in_words(self.start)}' if self.start else ''}"


def _seconds(duration: str) -> int:
    return parse_duration(duration) // timedelta(seconds=1)


@dataclass(frozen=True)
class Schedule:
    """A periodic schedule aligned to midnight UTC: boundaries every `every`.

    Airflow runs it by a cron expression, so it is whole minutes that divide an hour, whole hours that divide a day,
    or a day. Raises UsageError for any other, and for a negative `build_missing`.
    """

    every: timedelta
    build_missing: int = 0
    """How many missing intervals each scheduled run also builds, the oldest first."""
    registered_within: timedelta = timedelta(minutes=20)
    """How long after its end an interval may take to be registered; operators are notified when it takes longer."""

    def __post_init__(self) -> None:
        if self.build_missing < 0:
            raise UsageError(f"build_missing is {self.build_missing}", remedy="a number of intervals, or 0 for none")
        if not isinstance(self.registered_within, timedelta):
            raise UsageError(
                f"registered_within is {self.registered_within!r}",
                remedy='write every("1h", registered_within="20m"), or a timedelta',
            )
        hour, day = timedelta(hours=1), timedelta(days=1)
        unit, whole = (timedelta(minutes=1), hour) if self.every < hour else (hour, day)
        if self.every <= timedelta(0) or self.every % unit or whole % self.every:
            raise UsageError(
                f"cron cannot say a schedule of every {describe_duration(self.every)}",
                remedy="whole minutes that divide an hour (15m), whole hours that divide a day (6h), or a day (1d)",
            )

    @property
    def is_hourly(self) -> bool:
        """Whether its days are summed up: Airflow's window of a day consists of 24 hourly keys."""
        return self.every == timedelta(hours=1)

    @property
    def cron(self) -> str:
        """The cron expression of the boundaries."""
        minutes = self.every // timedelta(minutes=1)
        if minutes < 60:
            return f"*/{minutes} * * * *"
        return f"0 */{minutes // 60} * * *" if minutes < 24 * 60 else "0 0 * * *"

    def floor(self, moment: datetime) -> datetime:
        """Return the last boundary at or before `moment`."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight + (moment - midnight) // self.every * self.every

    def before(self, moment: datetime) -> datetime:
        """Return the last boundary before `moment`."""
        return self.floor(moment - timedelta.resolution)

    def between(self, begin: datetime, end: datetime) -> Iterator[Interval]:
        """Yield the intervals from one time to another, in order.

        The first and the last are shorter when these times are not boundaries: they belong to an earlier schedule.
        """
        while begin < end:
            until = min(self.floor(begin) + self.every, end)
            yield Interval(begin, until)
            begin = until

    def around(self, known: Iterable[Interval], begin: datetime, end: datetime) -> Iterator[Interval]:
        """Yield the intervals from one time to another, in order: known ones as they are, and those between and after.

        The known ones, in order, may belong to an earlier schedule; the last may end later.
        """
        for each in known:
            yield from self.between(begin, each.from_time)
            yield each
            begin = each.to_time
        yield from self.between(begin, end)

    def labelled(self, label: str) -> Interval | None:
        """Return the interval that a label names; None for anything else."""
        for form in ("%Y-%m-%dT%H", "%Y-%m-%dT%H%M%S"):
            try:
                begin = datetime.strptime(label, form).replace(tzinfo=UTC)
            except ValueError:
                continue
            interval = Interval(begin, begin + self.every)
            return interval if begin >= EPOCH and interval.label == label else None
        return None

    def interval(self, from_time: datetime, to_time: datetime, *, now: datetime) -> Interval:
        """Return the interval between two boundaries. Raises UsageError unless they are neighbours and past."""
        every, begins = describe_duration(self.every), f"the interval begins at {format_time(from_time)}"
        latest = f"the latest that can run begins at {format_time(self.floor(now) - self.every)}"
        if from_time < EPOCH:
            raise UsageError(f"{begins}, and Kafka's timestamps in 1970", remedy="was another year meant?")
        for moment in (from_time, to_time):
            if self.floor(moment) != moment:
                raise UsageError(
                    f"{format_time(moment)} is not a boundary of the schedule (every {every})",
                    remedy=f"the boundary before it is {format_time(self.floor(moment))}",
                )
        if from_time > now:
            raise UsageError(f"{begins}, which has not passed yet", remedy=latest)
        if to_time - from_time != self.every:
            raise UsageError(
                f"{format_time(from_time)} to {format_time(to_time)} is not one interval of {every}",
                remedy=f"--to {format_time(from_time + self.every)}",
            )
        if to_time > now:
            raise UsageError(f"the interval ends at {format_time(to_time)}, which has not passed yet", remedy=latest)
        return Interval(from_time, to_time)


def every(duration: str, *, build_missing: int = 0, registered_within: str = "20m") -> Schedule:
    """Return a schedule with a boundary every `duration`, e.g. `15m`, `6h` or `1d`, and its intervals' deadline."""
    return Schedule(parse_duration(duration), build_missing, parse_duration(registered_within))


def hourly(*, build_missing: int = 0, registered_within: str = "20m") -> Schedule:
    """Return a schedule with a boundary at every full hour."""
    return every("1h", build_missing=build_missing, registered_within=registered_within)


def utc(moment: datetime) -> datetime:
    """Return a time from Spark, which has no zone, as a time in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@dataclass(frozen=True)
class Stopwatch:
    """Measures how long the parts of a job take; people read it, no result depends on it."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by part, in the order in which the parts began."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to a part."""
        began = time.monotonic()
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds[name] + time.monotonic() - began, 3)
