"""`bench archive`: throughput of the archive query against bare PySpark, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.home import BenchHome, bench_home
from tests.benchmarks.targets import Target


def run(events: int = 200_000, rounds: int = 5, bad_fraction: float = 0.01, **settings: str) -> dict[str, Any]:
    """Return the seconds of each side per round, and the ratio of their throughputs."""
    with bench_home(TIDEMARK_DRIVER_MEMORY="3g", **settings) as home:
        home.run("produce", "nest_cameras", "--events", str(events), "--bad-fraction", str(bad_fraction))
        return run_queries(home, "nest_cameras", rounds)


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the target: at most 5 % slower than plain PySpark."""
    return [Target("throughput_ratio", found["throughput_ratio"]["median"], at_least=0.95)]


def run_queries(home: BenchHome, pipeline: str, rounds: int, *options: str) -> dict[str, Any]:
    """Run a pipeline's queries in drivers of their own (`archive_queries.py`); return their costs."""
    result = home.path / "result.json"
    script = Path(__file__).with_name("archive_queries.py")
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            "--pipeline",
            pipeline,
            "--rounds",
            str(rounds),
            "--result",
            str(result),
            *options,
        ],
        env=home.environment(),
        # spark-submit sends the driver's output, including errors, to its standard output.
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"the queries of {pipeline} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found
