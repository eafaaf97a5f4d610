"""Drivers on the embedded YARN, as its node managers' processes and the ledger tell of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil

from include.services.process import running
from include.spark import yarn
from tests.conftest import REPOSITORY, Home, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_ui import api_of

TOPICS = {"nest_cameras": "nest-logs", "isp_hits": "isp-hits"}
ON_YARN = {
    "TIDEMARK_SPARK_MASTER": "yarn",
    "TIDEMARK_SPARK_DEPLOY_MODE": "cluster",
    "TIDEMARK_SPARK_EXECUTORS": "1",
    "TIDEMARK_EXECUTOR_MEMORY": "512m",
    "TIDEMARK_DRIVER_MEMORY": "768m",
    "TIDEMARK_ARCHIVE_WAIT": "10m",
}
PATIENCE = 1200
"""Seconds: a driver waits for its container, its JVM and its executor, on a busy machine."""


def up(home: Home) -> str:
    """Start the cluster, and return the address of its resource manager."""
    home.run("up", "yarn")
    return home.address("yarn")


@contextlib.contextmanager
def airflow_up(home: Home, manager: str, *pipelines: str) -> Iterator[AirflowApi]:
    """Airflow that hands drivers over to the cluster, once it knows the pipelines' DAGs; streams end after it."""
    home.run("up", "airflow", **ON_YARN)
    api = api_of(home)
    dags = {f"{kind}__{pipeline}" for kind in ("stream", "interval") for pipeline in pipelines}
    wait_for("the DAGs", lambda: dags <= api.dag_ids(), 180)
    yield api
    for pipeline in pipelines:
        api.set_paused(f"stream__{pipeline}", True)
        for _, application in launches(home, pipeline):
            if application:
                yarn.kill(manager, application)


def committed(home: Home, pipeline: str) -> int:
    query = f"SELECT coalesce(sum(next_offset), 0) FROM positions WHERE pipeline = '{pipeline}' AND query = 'archive'"
    return int(home.ledger(query)[0][0])


def launches(home: Home, pipeline: str) -> list[tuple[str, str]]:
    """Launches and their applications, oldest first."""
    query = f"SELECT id, application FROM stream_launches WHERE pipeline = '{pipeline}' ORDER BY launched_at"
    return [(str(launch), str(application)) for launch, application in home.ledger(query)]


def end_of(manager: str, application: str) -> yarn.Application | None:
    """The application, once it has ended."""
    found = yarn.find(manager, application)
    return found if found is not None and found.has_ended else None


def leases(home: Home) -> set[str]:
    return {pipeline for (pipeline,) in home.ledger("SELECT pipeline FROM writers WHERE holder <> ''")}


def produce(home: Home, pipeline: str, events: int, seed: int, start: datetime) -> None:
    home.produce(pipeline, events, start, "1h", bad=0.02, seed=seed)


def driver_container(application: str) -> list[psutil.Process]:
    """The processes of the container in which an application's driver runs: it is the first one."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if yarn.own_application(environment) == application and environment["CONTAINER_ID"].endswith("_000001"):
            found.append(process)
    return found


def check(home: Home, pipeline: str, records: int) -> None:
    """Each record of the topic has one fate in landing, and each row is there once."""
    files = home.ledger(
        "SELECT DISTINCT f.fate, f.path FROM landing_files f JOIN micro_batches b ON b.id = f.micro_batch_id "
        f"WHERE b.pipeline = '{pipeline}'",
    )
    archived = audit.read_files(home.lake / path for fate, path in files if fate == "archived")
    assert set(audit.identities(archived).values()) == {1}
    others = audit.read_coordinates(home.lake / path for fate, path in files if fate != "archived")
    fates = Counter(audit.coordinates_of(archived).keys()) + others
    assert fates == Counter(audit.read_topic(home.kafka, TOPICS[pipeline]).keys())
    assert fates.total() == records


def node_of_driver(home: Home, application: str) -> str:
    """The name of the node on which an application's driver runs."""
    for process in driver_container(application):
        with contextlib.suppress(psutil.NoSuchProcess):
            return node_of(home, process)
    raise AssertionError(f"{application} has no driver")


def drivers_of(home: Home, entry: str) -> list[psutil.Process]:
    """The Python processes of drivers of an entry of `spark_jobs/`, in containers of a home's nodes."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(part.endswith(entry) for part in process.cmdline()) and "python" in process.name()
            if named and process.environ().get("LOG_DIRS", "").startswith(f"{home.path / 'yarn'}/"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def processes_of(node: Path) -> list[psutil.Process]:
    """The processes in the containers of a node, by the folder of its logs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LOG_DIRS", "").startswith(f"{node}/"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def node_of(home: Home, process: psutil.Process) -> str:
    """The name of the node in one of whose containers a process runs."""
    return Path(process.environ()["LOG_DIRS"]).relative_to(home.path / "yarn").parts[0]


def lose_node(home: Home, name: str) -> None:
    """End a node manager and all that runs in its containers at once, as of a machine that has failed."""
    manager = running(json.loads((home.path / "services" / f"{name}.json").read_text()))
    assert manager is not None
    manager.send_signal(signal.SIGKILL)
    while left := processes_of(home.path / "yarn" / name / "logs"):
        for process in left:
            # One that ends by itself, without those that were ended before it.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)


def bring_back(home: Home, name: str) -> None:
    """Start the node manager of a lost node again, and wait until the cluster has both nodes."""
    start = f"from include.services import yarn; yarn.start_node({name!r})"
    subprocess.run([sys.executable, "-c", start], cwd=REPOSITORY, env=home.environment(), check=True, timeout=120)
    wait_for("both nodes", lambda: home.services["yarn"]["healthy"], 120)
