"""`bench archive`: throughput of the archive query against bare PySpark, in turns."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.home import BenchHome, bench_home
from tests.benchmarks.targets import Target


def run(events: int = 200_000, rounds: int = 5, bad_fraction: float = 0.01, **settings: str) -> dict[str, Any]:
    """Return the seconds of each side per round, and the ratio of their throughputs."""
    with bench_home(TIDEMARK_DRIVER_MEMORY="3g", **settings) as home:
        home.produce("nest_cameras", events, bad_fraction)
        return run_queries(home, "nest_cameras", rounds)


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the target: at most 5 % slower than plain PySpark."""
    return [Target("throughput_ratio", found["throughput_ratio"]["median"], at_least=0.95)]


def run_queries(home: BenchHome, pipeline: str, rounds: int, *options: str) -> dict[str, Any]:
    """Run a pipeline's queries in drivers of their own (`archive_queries.py`); return their costs."""
    return home.measured("archive_queries.py", pipeline, rounds, *options)
