"""`bench ablation`: the archive query taken apart by its steps, beside PySpark's, in CPU time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from include.pipelines import pipeline_names
from tests.benchmarks.home import bench_home, by_pipeline
from tests.benchmarks.targets import Target


def run(
    pipelines: Sequence[str] = (), events: int = 200_000, rounds: int = 3, bad_fraction: float = 0.0
) -> dict[str, Any]:
    """By pipeline: CPU seconds per million records of each step of the archive query, and of PySpark's."""
    return by_pipeline(pipelines or pipeline_names(), lambda name: _of(name, events, rounds, bad_fraction))


def targets(_: dict[str, Any]) -> list[Target]:
    """Return none: it tells what the ratios of `bench pipelines` are made of."""
    return []


def _of(name: str, events: int, rounds: int, bad_fraction: float) -> dict[str, Any]:
    with bench_home(name, TIDEMARK_DRIVER_MEMORY="3g") as home:
        home.produce(name, events, bad_fraction)
        return home.measured("archive_steps.py", name, rounds)
