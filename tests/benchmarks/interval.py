"""`bench interval`: CPU time of an interval by its parts, and what a million records cost against the archive query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from include.times import format_time
from tests.benchmarks.home import BenchHome, bench_home
from tests.benchmarks.targets import Target

HOUR = timedelta(hours=1)
SMALLER = 4
"""How many times fewer messages the smaller of the two intervals has."""


def run(
    pipelines: Sequence[str] = ("nest_cameras",), events: int = 400_000, rounds: int = 3, bad_fraction: float = 0.01
) -> dict[str, Any]:
    """By pipeline: CPU seconds per million records between an interval and one of a quarter of its size, by part."""
    return {name: _of(name, events, rounds, bad_fraction) for name in pipelines}


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the target: an interval costs at most twice its archive query."""
    return [
        Target(f"{name}.ratio_to_archive_query", of["ratio_to_archive_query"], at_most=2.0)
        for name, of in found.items()
    ]


def _of(name: str, events: int, rounds: int, bad_fraction: float) -> dict[str, Any]:
    hours = two_hours()
    with produced(name, hours, events, bad_fraction) as home:
        home.run("stream", name, "--until-caught-up")
        return run_parts(home, name, hours, rounds)


def two_hours() -> list[datetime]:
    """Begins of two past hours."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 3 * HOUR
    return [start, start + HOUR]


@contextmanager
def produced(name: str, hours: Sequence[datetime], events: int, bad_fraction: float) -> Iterator[BenchHome]:
    """A home with a quarter of the messages in the first hour, and all in the second."""
    with bench_home(name, TIDEMARK_DRIVER_MEMORY="3g") as home:
        for hour, count in zip(hours, (events // SMALLER, events), strict=True):
            home.produce(name, count, bad_fraction, hour)
        yield home


def run_parts(home: BenchHome, name: str, hours: Sequence[datetime], rounds: int) -> dict[str, Any]:
    """Measure the parts of intervals in a driver of their own (`interval_parts.py`)."""
    begins = [part for hour in hours for part in ("--hour", format_time(hour))]
    return home.measured("interval_parts.py", name, rounds, *begins)
