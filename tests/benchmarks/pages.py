"""`bench pages`: what being looked at costs: an idle stack with a page open, a stream's notes of itself, DAG files.

CPU seconds, so that others on the machine change little. `idle`: cores that Airflow, Kafka, PostgreSQL and one stream
take together while nothing arrives, without and with somebody at the stream's page, whose metrics are asked for every
15 seconds. `notes`: what the driver and PostgreSQL spend on one look at the running queries, which happens every two
seconds. `busy`: the cores that page and metrics take of Airflow's API server and PostgreSQL, and, together with the
notes, the share of the machine that a stream which keeps it busy goes without. `dag_files`: the least of all rounds to
read a DAG file in a process that has imported what Airflow's own forks from.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import psutil

from include.airflow.api import AirflowApi
from include.monitor.web.events import RETRY
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
        turns: list[dict[str, Cores]] = []
        for _ in range(rounds):
            without = _cores(home, seconds)
            with somebody_looks(airflow):
                turns.append({"without": without, "with_page": _cores(home, seconds)})
        notes = _cost_of_notes(home)
    idle = {name: round(statistics.median(each[name].all for each in turns), 4) for name in turns[0]}
    looks = statistics.median(each["with_page"].serving - each["without"].serving for each in turns)
    share = (looks + notes["share_of_a_core"]) / (os.cpu_count() or 1)
    return {
        "idle": {**idle, "rounds": [{name: asdict(each) for name, each in turn.items()} for turn in turns]},
        "notes": notes,
        "busy": {"looks_cores": round(looks, 4), "share_of_all_cores": round(share, 5)},
        "dag_files": files,
    }


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: open pages cost almost nothing, and Airflow parses its DAGs quickly."""
    return [
        Target("idle.with_page", found["idle"]["with_page"], at_most=0.15),
        Target("busy.share_of_all_cores", found["busy"]["share_of_all_cores"], at_most=0.01),
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
    # Set-up, the first compilations and the first parsing of all DAG files do not count as idle.
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
        # The server ends a connection after a while, and a browser opens it anew.
        while not over.wait(RETRY / 1000):
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


@dataclass(frozen=True)
class Cores:
    """Cores that processes take on average; those that ended meanwhile count by their parents."""

    all: float
    serving: float
    """What a page is made by: Airflow's API server and PostgreSQL."""


def _cores(home: BenchHome, seconds: float) -> Cores:
    before, served, began = _cpu(_processes(home)), _cpu(_serving(home)), time.monotonic()
    time.sleep(seconds)
    after, serves, took = _cpu(_processes(home)), _cpu(_serving(home)), time.monotonic() - began
    return Cores((after - before) / took, (serves - served) / took)


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of processes, with all that they have waited for."""
    spent = 0.0
    for process in processes:
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


def _serving(home: BenchHome) -> list[psutil.Process]:
    airflow = psutil.Process(home.state("airflow")["pid"]).children(recursive=True)
    roots = [each for each in airflow if any("api-server" in part or "api_server" in part for part in each.cmdline())]
    assert roots, "Airflow has no API server"
    roots.append(psutil.Process(home.state("postgres")["pid"]))
    found = {each.pid: each for root in roots for each in (root, *root.children(recursive=True))}
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
    # PostgreSQL also served the warm-up looks.
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
