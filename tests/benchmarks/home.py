"""Services of a benchmark's own, driven through the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from include.pipelines import load_pipeline
from include.pipelines.spec import Avro
from include.times import format_time

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class BenchHome:
    """A home folder with its services."""

    path: Path
    settings: dict[str, str]

    def environment(self, **extra: str) -> dict[str, str]:
        """The caller's environment without the caller's settings, and with these."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")}
        ours = {"TIDEMARK_HOME": str(self.path), "PYTHONPATH": str(REPOSITORY), "TZ": "UTC"}
        return {**kept, **ours, **self.settings, **extra}

    def run(self, *arguments: str, **extra: str) -> str:
        """Run a command to its end; its standard output. Its messages are shown when it fails."""
        command = [sys.executable, "-m", "include.cli", *arguments]
        done = subprocess.run(
            command, env=self.environment(**extra), cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
        return done.stdout

    def produce(self, pipeline: str, events: int, bad_fraction: float, hour: datetime | None = None) -> None:
        """Write generated messages to the pipeline's topic, of this hour, by default of the last three."""
        bounds = ("--start", format_time(hour), "--span", "1h") if hour else ()
        self.run("produce", pipeline, "--events", str(events), "--bad-fraction", str(bad_fraction), *bounds)

    def measured(self, script: str, pipeline: str, rounds: int, *options: str) -> dict[str, Any]:
        """Run a script of this folder under spark-submit, in a driver of its own; return what it measured."""
        result = self.path / "result.json"
        command = [sys.executable, str(Path(__file__).with_name(script)), "--pipeline", pipeline]
        command += ["--rounds", str(rounds), "--result", str(result), *options]
        # spark-submit sends the driver's output, including errors, to its standard output.
        done = subprocess.run(command, env=self.environment(), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stdout)
            raise SystemExit(f"{script} of {pipeline} ended with {done.returncode}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def state(self, service: str) -> dict[str, Any]:
        """What an embedded service wrote about itself: address, pid, …"""
        found: dict[str, Any] = json.loads((self.path / "services" / f"{service}.json").read_text())
        return found


def by_pipeline(names: Iterable[str], measure: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Measure each pipeline. Each takes minutes, so results so far are printed even if the run is ended early."""
    found = {}
    for name in names:
        found[name] = measure(name)
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return found


@contextmanager
def bench_home(pipeline: str = "nest_cameras", **settings: str) -> Iterator[BenchHome]:
    """Fresh embedded Kafka and PostgreSQL, and what else the pipeline needs, stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", ignore_cleanup_errors=True) as folder:
        home = BenchHome(Path(folder), settings)
        try:
            registry = ("registry",) if isinstance(load_pipeline(pipeline).decoder, Avro) else ()
            home.run("up", "kafka", "postgres", *registry)
            yield home
        finally:
            home.run("down")
