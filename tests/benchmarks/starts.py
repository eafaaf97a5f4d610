"""`bench starts`: an interval and a statement, each with a JVM of its own and in the JVM that `up spark` keeps.

Both take turns. The interval is small and built again each time, so nearly all that it takes is its fixed cost. CPU
seconds are those of the command, of all processes that it waited for, and of the kept JVM with its Python workers.
"""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import psutil

from include.spark.submission import OWN_SPARK_SUBMIT
from include.times import format_time
from tests.benchmarks.home import REPOSITORY, BenchHome, bench_home
from tests.benchmarks.targets import Target

HOUR = timedelta(hours=1)

WAYS: dict[str, dict[str, str]] = {"own": {"TIDEMARK_SPARK_SUBMIT": str(OWN_SPARK_SUBMIT)}, "kept": {}}
"""Settings with which a command starts a JVM of its own, or uses the kept one."""

WARM_UP = 3
"""Rounds that do not count: code is compiled by then, as it is in a service that has run for a while."""


def run(events: int = 2_000, rounds: int = 5) -> dict[str, Any]:
    """Return the median wall and CPU seconds of both commands, each way."""
    with bench_home() as home:
        start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - 2 * HOUR
        home.run("produce", "nest_cameras", "--events", str(events), "--start", format_time(start), "--span", "1h")
        home.run("stream", "nest_cameras", "--until-caught-up")
        home.run("up", "spark")
        bounds = ["--from", format_time(start), "--to", format_time(start + HOUR)]
        commands = {"interval": ["interval", "nest_cameras", *bounds], "sql": ["sql", "SELECT 1"]}
        taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for number in range(WARM_UP + rounds):
            for name, command in commands.items():
                for way, settings in WAYS.items():
                    seconds = _seconds(home, command, settings)
                    if number >= WARM_UP:
                        taken.setdefault((name, way), []).append(seconds)
    return {
        name: {
            way: {
                "wall": round(median(wall for wall, _ in taken[name, way]), 2),
                "cpu": round(median(cpu for _, cpu in taken[name, way]), 2),
            }
            for way in WAYS
        }
        for name in commands
    }


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: a start that is not felt."""
    return [
        *(
            Target(f"interval.{way}.{of}", found["interval"][way][of], at_most=15.0)
            for way in WAYS
            for of in ("cpu", "wall")
        ),
        *(Target(f"sql.{way}.wall", found["sql"][way]["wall"], at_most=3.0) for way in WAYS),
    ]


def _seconds(home: BenchHome, command: list[str], settings: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command that succeeds."""
    before, begin = _kept_cpu(home), time.monotonic()
    process = subprocess.Popen(
        [str(REPOSITORY / "tidemark"), *command],
        env=home.environment(**settings),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime + _kept_cpu(home) - before


def _kept_cpu(home: BenchHome) -> float:
    """CPU seconds of the kept JVM, of its keeper and its Python workers so far."""
    keeper = psutil.Process(home.state("spark")["pid"])
    times = [each.cpu_times() for each in (keeper, *keeper.children(recursive=True))]
    # Python workers that have ended are in what their parent has waited for.
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)
