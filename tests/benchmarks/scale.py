"""`bench scale`: how many records a second one core carries, by pipeline, and what a second executor adds."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.pipelines import pipeline_names
from tests.benchmarks.archive import run_queries
from tests.benchmarks.home import BenchHome, bench_home, by_pipeline
from tests.benchmarks.interval import SMALLER, produced, run_parts, two_hours
from tests.benchmarks.targets import Target
from tests.support.standalone import standalone_cluster

RATES = (1_000, 10_000, 100_000)
"""Records a second."""
EXECUTOR_CORES = 4
"""Cores of an executor, as the table counts them."""
SLOPE = "nest_cameras"
"""The pipeline that runs on clusters."""


def run(
    pipelines: Sequence[str] = (), events: int = 200_000, rounds: int = 3, bad_fraction: float = 0.01
) -> dict[str, Any]:
    """Records a second of one core, by pipeline, for the stream, the interval, and both.

    Also the slope on clusters, if SLOPE is among the pipelines.
    """
    names = pipelines or pipeline_names()
    found = {"pipelines": by_pipeline(names, lambda name: _of(name, events, rounds, bad_fraction))}
    if SLOPE in names:
        found["executors"] = _slope(events, rounds)
    return found


def targets(found: dict[str, Any]) -> list[Target]:
    """Return no target: these figures say what a machine needs, and not whether the code is good."""
    return []


def per_core(stream: float, interval: float) -> dict[str, Any]:
    """Return what one core carries, from CPU seconds per million records of a stream and of its intervals.

    Records a second, and the cores that each of RATES takes for both, with the executors that have so many.
    """
    both = 1_000_000 / (stream + interval)
    cores = {str(rate): math.ceil(rate / both) for rate in RATES}
    return {
        "stream": round(1_000_000 / stream),
        "interval": round(1_000_000 / interval),
        "both": round(both),
        "cores": cores,
        "executors": {rate: math.ceil(count / EXECUTOR_CORES) for rate, count in cores.items()},
    }


def _of(name: str, events: int, rounds: int, bad_fraction: float) -> dict[str, Any]:
    """CPU seconds per million records in warm drivers, and what one core carries by them. Flags are not included."""
    hours = two_hours()
    with produced(name, hours, events, bad_fraction) as home:
        queries = run_queries(home, name, rounds, "--alone")
    # The queries above committed to a ledger whose checkpoints are gone.
    with produced(name, hours, events, bad_fraction) as home:
        home.run("stream", name, "--until-caught-up")
        interval = run_parts(home, name, hours, rounds)["cpu_per_million"]
    if interval <= 0:
        raise SystemExit(f"{name}: {events} messages in {rounds} rounds are too few for an interval to show their cost")
    rates = {"archive": queries["archive"], **queries["speed"]}
    parts = {query: 1_000_000 / rate for query, rate in rates.items()}
    return {
        "cpu_seconds_per_million": {part: round(used, 1) for part, used in {**parts, "interval": interval}.items()},
        "records_a_second_of_one_core": per_core(sum(parts.values()), interval),
    }


def _slope(events: int, rounds: int) -> dict[str, Any]:
    """Records a second of a stream by the executors that it has, each with one core, and how they compare.

    Between the wall time of many and of few records, so that no start counts. Driver and services run on the same
    machine: with as many executors as the machine has cores, they all share these.
    """
    rates: dict[int, float] = {}
    for executors in (1, 2):
        with tempfile.TemporaryDirectory(prefix="tidemark-cluster-", ignore_cleanup_errors=True) as folder:
            of_it = {"workers": executors, "cores": 1, "cores_of_application": executors}
            with standalone_cluster(Path(folder), **of_it) as cluster, bench_home() as home:
                best = max(_records_a_second(home, cluster.master, events) for _ in range(rounds))
                # By worker: each run of the stream starts executors of its own.
                if len(cluster.executors()) < executors:
                    raise SystemExit(f"the stream did not run on {executors} workers: its figures do not count")
                rates[executors] = best
    shown = {str(executors): round(rate) for executors, rate in rates.items()}
    return {"pipeline": SLOPE, "records_a_second": shown, "ratio": round(rates[2] / rates[1], 2)}


def _records_a_second(home: BenchHome, master: str, events: int) -> float:
    seconds = []
    for count in (events // SMALLER, events):
        home.run("produce", SLOPE, "--events", str(count))
        begun = time.monotonic()
        home.run("stream", SLOPE, "--until-caught-up", TIDEMARK_SPARK_MASTER=master)
        seconds.append(time.monotonic() - begun)
    return (events - events // SMALLER) / (seconds[1] - seconds[0])
