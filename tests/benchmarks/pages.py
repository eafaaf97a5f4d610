"""`bench pages`: what being looked at costs: an idle stack with a page open, a stream's notes of itself, DAG files.

CPU seconds, so that others on the machine change little. `idle`: cores that Airflow, Kafka, PostgreSQL and one stream
take together while nothing arrives, without and with somebody at the stream's page, whose metrics are asked for every
15 seconds. `notes`: what the driver and PostgreSQL spend on one look at the running queries, which happens every two
seconds, as a share of a core that a busy stream takes. `dag_files`: the least of all rounds to read a DAG file in a
process that has imported what Airflow's own forks from.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from include.airflow.api import AirflowApi
from spark_jobs.streaming.progress import EVERY
from tests.benchmarks.home import REPOSITORY, BenchHome, bench_home
from tests.benchmarks.progress_notes import WARM
from tests.benchmarks.targets import Target

NAME = "isp_hits"

_PARSE = """
import importlib.util, json, sys, time
import airflow.dag_processing.manager, airflow.dag_processing.processor, airflow.sdk
sys.path.insert(0, "dags")
found = importlib.util.spec_from_file_location("measured", sys.argv[1])
began = time.process_time()
found.loader.exec_module(importlib.util.module_from_spec(found))
print("RESULT", time.process_time() - began)
"""


def run(rounds: int = 3, seconds: float = 60.0) -> dict[str, Any]:
    """Cores of the idle stack in turns without and with a page, cost of a look, and CPU seconds of each DAG file."""
    files = dag_files(rounds)
    with bench_home(TIDEMARK_JVM_OPTIONS="") as home, idle_stack(home) as airflow:
        turns: dict[str, list[float]] = {"without": [], "with_page": []}
        for _ in range(rounds):
            turns["without"].append(_cores(home, seconds))
            with somebody_looks(airflow):
                turns["with_page"].append(_cores(home, seconds))
        notes = _cost_of_notes(home)
    idle = {name: round(statistics.median(each), 4) for name, each in turns.items()}
    return {"idle": {**idle, "rounds": turns}, "notes": notes, "dag_files": files}


def targets(found: dict[str, Any]) -> list[Target]:
    """Nobody pays for being looked at, and Airflow reads its DAGs at once."""
    return [
        Target("idle.with_page", found["idle"]["with_page"], at_most=0.15),
        Target("notes.share_of_a_core", found["notes"]["share_of_a_core"], at_most=0.01),
        *(Target(f"dag_files.{name}", each, at_most=0.5) for name, each in found["dag_files"].items()),
    ]


def dag_files(rounds: int) -> dict[str, float]:
    """Least CPU seconds to read each DAG file over the rounds."""
    paths = sorted((REPOSITORY / "dags").glob("*.py"))
    return {path.name: round(min(_parse(str(path)) for _ in range(rounds)), 3) for path in paths}


def _parse(path: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, path],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).split()[1])


@contextmanager
def idle_stack(home: BenchHome) -> Iterator[AirflowApi]:
    """Airflow with one stream that has nothing to do."""
    home.run("produce", NAME, "--events", "1000")
    home.run("up", "airflow")
    password = json.loads((home.path / "airflow" / "passwords.json").read_text())["admin"]
    airflow = AirflowApi(home.state("airflow")["address"], "admin", password)
    stream = f"stream__{NAME}"
    _wait(lambda: stream in airflow.dag_ids())
    airflow.set_paused(stream, False)
    _wait(lambda: not any(each["lag"] for each in json.loads(home.run("lag", NAME, "--json"))))
    # Set-up, the first compilations and the first reading of all DAG files are no idleness.
    time.sleep(60)
    yield airflow
    airflow.set_paused(stream, True)
    home.run("stream", NAME, "--stop")


@contextmanager
def somebody_looks(airflow: AirflowApi) -> Iterator[None]:
    """Somebody has the stream's page open, and Prometheus asks for the metrics every 15 seconds."""
    headers = dict(airflow._client.headers)
    over = threading.Event()

    def look() -> None:
        place = f"{airflow.address}/tidemark/pipelines/{NAME}/events"
        with httpx.stream("GET", place, headers=headers, timeout=60) as page:
            for _ in page.iter_lines():
                if over.is_set():
                    return

    def scrape() -> None:
        while not over.wait(15):
            httpx.get(f"{airflow.address}/tidemark/metrics", headers=headers, timeout=60).raise_for_status()

    threads = [threading.Thread(target=each, daemon=True) for each in (look, scrape)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join(30)


def _cores(home: BenchHome, seconds: float) -> float:
    """Cores that all processes of the home take on average; those that ended meanwhile count by their parents."""
    before, began = _cpu(home), time.monotonic()
    time.sleep(seconds)
    return (_cpu(home) - before) / (time.monotonic() - began)


def _cpu(home: BenchHome) -> float:
    """CPU seconds of the services and of the driver, with all that they have waited for."""
    spent = 0.0
    for process in _processes(home):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def _processes(home: BenchHome) -> list[psutil.Process]:
    roots = [psutil.Process(home.state(name)["pid"]) for name in ("kafka", "postgres", "airflow")]
    drivers = [each for each in psutil.process_iter(["cmdline"]) if _is_driver(each, home)]
    found = {each.pid: each for root in (*roots, *drivers) for each in (root, *root.children(recursive=True))}
    return list(found.values())


def _is_driver(process: psutil.Process, home: BenchHome) -> bool:
    try:
        is_stream = any(part.endswith("stream.py") for part in process.info["cmdline"] or ())
        return is_stream and process.environ().get("TIDEMARK_HOME") == str(home.path)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _cost_of_notes(home: BenchHome, looks: int = 200) -> dict[str, float]:
    """CPU seconds of noting the progress of two queries, its PostgreSQL included, per look and as a share of a core."""
    environment = home.environment()
    before = _postgres(home)
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.progress_notes", NAME, str(looks)],
        env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    driver = float(done.stdout)
    # PostgreSQL served the looks that do not count, too.
    database = (_postgres(home) - before) / (looks + WARM)
    look = driver + database
    return {
        "cpu_milliseconds_of_a_look": round(1000 * look, 2),
        "share_of_a_core": round(look / EVERY.total_seconds(), 5),
    }


def _postgres(home: BenchHome) -> float:
    root = psutil.Process(home.state("postgres")["pid"])
    spent = 0.0
    for process in (root, *root.children(recursive=True)):
        times = process.cpu_times()
        spent += times.user + times.system + (times.children_user + times.children_system if process == root else 0)
    return spent


def _wait(condition: Any, seconds: float = 300.0) -> None:
    over = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > over:
            raise SystemExit("the stack did not come up in time")
        time.sleep(1)
