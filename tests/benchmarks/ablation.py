"""`bench ablation`: the archive query taken apart by its steps, beside PySpark's, in CPU time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from include.pipelines import load_pipeline, pipeline_names
from include.pipelines.spec import Avro
from tests.benchmarks.home import bench_home
from tests.benchmarks.targets import Target


def run(
    pipelines: Sequence[str] = (), events: int = 200_000, rounds: int = 3, bad_fraction: float = 0.0
) -> dict[str, Any]:
    """By pipeline: CPU seconds per million records of each step of the archive query, and of PySpark's."""
    found = {}
    for name in pipelines or pipeline_names():
        found[name] = _of(name, events, rounds, bad_fraction)
        # Each takes minutes, so results so far are printed even if the run is ended early.
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return found


def targets(_: dict[str, Any]) -> list[Target]:
    """Return none: it tells what the ratios of `bench pipelines` are made of."""
    return []


def _of(name: str, events: int, rounds: int, bad_fraction: float) -> dict[str, Any]:
    with bench_home(TIDEMARK_DRIVER_MEMORY="3g") as home:
        if isinstance(load_pipeline(name).decoder, Avro):
            home.run("up", "registry")
        home.run("produce", name, "--events", str(events), "--bad-fraction", str(bad_fraction))
        return home.measured("archive_steps.py", name, rounds)
