"""`bench commands`: seconds of the commands that only read, start to end, against a bare process that does as little.

A command is run as users run it, by the launcher. Its baseline is run beside it in each round: a Python that does
nothing, for what asks nothing; one that connects to PostgreSQL and asks one question, for what reads the ledger. CPU
seconds are user and system of the process and of all that it waited for. Where others use the machine, the least of
several rounds says most, and the ratio says more than the seconds. Both services run, and nothing is pinned until
`explain` is measured, last, with a registered hour.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.home import REPOSITORY, BenchHome, bench_home
from tests.benchmarks.targets import Target

_QUERY = "import sys, psycopg2; c = psycopg2.connect(sys.argv[1]).cursor(); c.execute('SELECT 1'); c.fetchall()"

_REGISTER = """
from include.ledger.intervals.revisions import registered_of_interval
from tests.support.proved import register_hour
print(registered_of_interval(register_hour(0))[0].partition)
"""
"""Registers an hour of `nest_cameras` with 200 records, and prints its partition of the archive table."""


@dataclass(frozen=True)
class Measured:
    """A command, its baseline, and its target."""

    arguments: tuple[str, ...]
    baseline: str
    wall: float
    """Most seconds from start to end."""


COMMANDS = {
    "--help": Measured(("--help",), "python", 0.15),
    "pipelines": Measured(("pipelines",), "python", 0.3),
    "ranges": Measured(("ranges", "nest_cameras"), "query", 0.3),
    "status": Measured(("status",), "query", 0.3),
    "lag": Measured(("lag",), "query", 0.3),
    "explain": Measured(("explain", "nest_cameras"), "query", 0.3),
    "sql": Measured(("sql", "SELECT 1"), "query", 3.0),
}

_ONCE = {"sql"}
"""Run only once: it takes half a minute, and a few milliseconds do not matter."""


def run(rounds: int = 7, names: Sequence[str] = tuple(COMMANDS)) -> dict[str, Any]:
    """Return the smallest wall and CPU seconds of each command and baseline over the rounds, and the CPU ratios."""
    with bench_home() as home:
        baselines = {
            "python": [sys.executable, "-c", "pass"],
            "query": [sys.executable, "-c", _QUERY, str(home.state("postgres")["address"])],
        }
        ours = {name: [str(REPOSITORY / "tidemark"), *COMMANDS[name].arguments] for name in names}
        explain = ours.pop("explain", None)
        seconds: dict[str, list[tuple[float, float]]] = {}
        for number in range(rounds):
            for name, command in {**baselines, **ours}.items():
                if number == 0 or name not in _ONCE:
                    seconds.setdefault(name, []).append(_seconds(home, command))
        if explain is not None:
            explain.append(_registered_partition(home))
            for _ in range(rounds):
                seconds["query"].append(_seconds(home, baselines["query"]))
                seconds.setdefault("explain", []).append(_seconds(home, explain))
    least = {
        name: {"wall": round(min(wall for wall, _ in each), 3), "cpu": round(min(cpu for _, cpu in each), 3)}
        for name, each in seconds.items()
    }
    ratios = {name: round(least[name]["cpu"] / least[COMMANDS[name].baseline]["cpu"], 1) for name in names}
    return {"seconds": least, "cpu_ratio": ratios}


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: nobody should have to wait for a command that only reads."""
    return [
        Target(f"seconds.{name}.wall", each["wall"], at_most=COMMANDS[name].wall)
        for name, each in found["seconds"].items()
        if name in COMMANDS
    ]


def _registered_partition(home: BenchHome) -> str:
    command = [sys.executable, "-c", _REGISTER]
    return subprocess.check_output(command, env=home.environment(), cwd=REPOSITORY, text=True).strip()


def _seconds(home: BenchHome, command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command that succeeds."""
    begin = time.monotonic()
    process = subprocess.Popen(command, env=home.environment(), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime
