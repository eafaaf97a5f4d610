"""`bench flags`: from a bid's producer to its flag, in real time, in micro-batches, and through a bare echo."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.home import bench_home
from tests.benchmarks.targets import Target

RATES = {50: 1_500, 500: 7_500, 5_000: 50_000}
"""Bids per second, and how many of them are measured."""


STEADY = 500
"""Bids per second of the steady state."""


def run(rates: dict[int, int] | None = None, warm_up: float = 30.0, seconds: float = 600.0) -> dict[str, Any]:
    """p50 and p99 in milliseconds by way and rate, each p50 against the echo's, and a steady state of `seconds`.

    `warm_up`: seconds of bids before each way is measured, not counted.
    """
    with bench_home(TIDEMARK_DRIVER_MEMORY="2g") as home:
        result = home.path / "result.json"
        script = Path(__file__).with_name("flag_latency.py")
        arguments = ["--rates", json.dumps(rates or RATES), "--warm-up", str(warm_up), "--result", str(result)]
        arguments += ["--steady", json.dumps([STEADY, seconds])]
        subprocess.run(
            [sys.executable, str(script), *arguments],
            env=_spark_environment(home.environment()),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: at most three times as long as Kafka and its client, p99 of at most 20 ms, no bid missed."""
    real_time, steady = found["milliseconds"]["real_time"], found["steady"]
    ratios = found["p50_to_echo"]["real_time"].items()
    return [
        *(Target(f"p50_to_echo.real_time.{rate}", ratio, at_most=3.0) for rate, ratio in ratios),
        *(Target(f"milliseconds.real_time.{rate}.missing", of["missing"], at_most=0) for rate, of in real_time.items()),
        Target("steady.p99", steady["p99"], at_most=20.0),
        Target("steady.missing", steady["missing"], at_most=0),
    ]


def _spark_environment(environment: dict[str, str]) -> dict[str, str]:
    """With the configuration that streams get, for a session that the script's own process holds."""
    code = "import json; from include.spark.submission import submission; s = submission('stream', name='flags'); "
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}print(json.dumps([s.conf, s.env]))"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    conf, spark = json.loads(shown.stdout)
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return {**environment, **spark, "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"])}
