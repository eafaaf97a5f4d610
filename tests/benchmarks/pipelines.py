"""`bench pipelines`: what each pipeline's archive query, speed queries and intervals cost, in CPU time."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from include.pipelines import pipeline_names
from include.times import format_time
from tests.benchmarks.archive import run_queries
from tests.benchmarks.home import BenchHome, bench_home, by_pipeline
from tests.benchmarks.targets import Target

HOUR = timedelta(hours=1)


def run(
    pipelines: Sequence[str] = (), events: int = 200_000, rounds: int = 3, bad_fraction: float = 0.01
) -> dict[str, Any]:
    """By pipeline: CPU time against bare PySpark, events per CPU second, and CPU seconds of
    an interval per million events, whose fixed part (the start of Spark) is told by an interval without events.

    Of fewer events, what a query's start costs would be most of what is measured.
    """
    return by_pipeline(pipelines or pipeline_names(), lambda name: _of(name, events, rounds, bad_fraction))


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: an archive query uses at most 5 % more CPU time than PySpark, a speed query no more."""
    archives = [Target(f"{name}.cpu_ratio", of["cpu_ratio"]["median"], at_least=0.95) for name, of in found.items()]
    return archives + [
        Target(f"{name}.speed.{view}.cpu_ratio", query["cpu_ratio"]["median"], at_least=1.0)
        for name, of in found.items()
        for view, query in of["speed"].items()
    ]


def _of(name: str, events: int, rounds: int, bad_fraction: float) -> dict[str, Any]:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 2 * HOUR
    with bench_home(name, TIDEMARK_DRIVER_MEMORY="3g") as home:
        home.produce(name, events, bad_fraction, start)
        found = run_queries(home, name, rounds, "--speed")
    with bench_home(name) as home:
        home.produce(name, events, bad_fraction, start)
        home.run("stream", name, "--until-caught-up")
        full, empty = (_interval(home, name, begun) for begun in (start, start + HOUR))
    per_million = round((full - empty) / events * 1_000_000)
    interval = {"cpu_seconds": round(full, 1), "without_events": round(empty, 1), "per_million_events": per_million}
    return {**found, "interval": interval}


def _interval(home: BenchHome, name: str, begun: datetime) -> float:
    """CPU seconds of an interval by the command, all its processes together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    home.run("interval", name, "--from", format_time(begun), "--to", format_time(begun + HOUR))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
