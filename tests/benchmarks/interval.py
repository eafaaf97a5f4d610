"""`bench interval`: CPU time of an interval by its parts, and what a million records cost against the archive query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from include.pipelines import load_pipeline
from include.pipelines.spec import Avro
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
    with bench_home(TIDEMARK_DRIVER_MEMORY="3g") as home:
        if isinstance(load_pipeline(name).decoder, Avro):
            home.run("up", "registry")
        start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 3 * HOUR
        hours = [start, start + HOUR]
        for hour, count in zip(hours, (events // SMALLER, events), strict=True):
            what = ("--events", str(count), "--bad-fraction", str(bad_fraction))
            home.run("produce", name, *what, "--start", format_time(hour), "--span", "1h")
        home.run("stream", name, "--until-caught-up")
        return run_parts(home, name, hours, rounds)


def run_parts(home: BenchHome, name: str, hours: Sequence[datetime], rounds: int) -> dict[str, Any]:
    """Measure the parts of intervals in a driver of their own (`interval_parts.py`)."""
    begins = [part for hour in hours for part in ("--hour", format_time(hour))]
    return home.measured("interval_parts.py", name, rounds, *begins)
