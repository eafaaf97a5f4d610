"""Airflow with workers on several hosts: its EdgeExecutor, whose workers ask the API server for tasks; no broker.

The provider is installed in an environment of its own and put before the project's on the path: it is for these tests
only, and of the packages that both have, the versions are the lock file's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2

from include.services.airflow import airflow_environment, ensure_pool, unhealthy_parts
from include.services.process import free_port
from tests.conftest import JVM_OPTIONS, REPOSITORY, Home, settings_of, wait_for
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_ui import password_of
from tests.support.hosts import Host
from tests.support.tool_environment import tool_environment

HEARTBEAT_TIMEOUT = 40
"""Seconds after which Airflow tries a task again that has told nothing: Airflow's own default is 300."""

_POLICY = """
QUEUES = {queues!r}


def task_policy(task):
    task.queue = QUEUES.get(task.task_id, task.queue)
"""


@dataclass(frozen=True)
class Site:
    """Airflow's central parts, on the host of a home; the workers are elsewhere."""

    home: Home
    address: str
    environment: Mapping[str, str]
    """Of the central parts: the workers get what concerns them."""

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.address, "admin", password_of(self.home))

    def start_worker(self, host: Host, name: str, queues: str, **extra: str) -> None:
        """Start a worker on a host, and wait until Airflow knows it."""
        command = [sys.executable, str(Path(sys.executable).parent / "airflow"), "edge", "worker"]
        options = ["--edge-hostname", name, "--queues", queues, "--concurrency", "4"]
        log = host.folder / f"{name}.log"
        host.start([*command, *options], {**self._environment_of(host), **extra}, log)
        wait_for(f"{name} to register: {log}", lambda: name in self.workers(), 180)

    def workers(self) -> dict[str, str]:
        """The states of the workers that have registered, by their names."""
        with psycopg2.connect(self.home.database, dbname="airflow") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT worker_name, state FROM edge_worker")
            return dict(cursor.fetchall())

    def _environment_of(self, host: Host) -> dict[str, str]:
        """What a worker is told: addresses, secrets that Airflow's parts share, and folders of its own."""
        same = (
            "AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__CORE__LOAD_EXAMPLES", "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
            "AIRFLOW__CORE__EXECUTOR", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET",
            "AIRFLOW__EDGE__API_URL", "AIRFLOW__EDGE__HEARTBEAT_INTERVAL", "AIRFLOW__EDGE__JOB_POLL_INTERVAL",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", "AIRFLOW_CONN_SPARK_DEFAULT", "PATH", "PYTHONPATH",
            "TZ",
        )  # fmt: skip
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        return {
            **{name: self.environment[name] for name in same},
            **java,
            "LANG": "C.UTF-8",
            "HOME": str(host.folder),
            "AIRFLOW_HOME": str(host.folder / "airflow"),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(host.folder / "task-logs"),
            "TIDEMARK_HOME": str(host.folder / "tidemark"),
            "TIDEMARK_LAKE": host.lake.as_uri(),
            "TIDEMARK_KAFKA_BOOTSTRAP": self.home.kafka,
            "TIDEMARK_DATABASE_URL": self.home.database,
            "TIDEMARK_JVM_OPTIONS": JVM_OPTIONS,
            "TIDEMARK_DRIVER_MEMORY": "768m",
            "TIDEMARK_ARCHIVE_WAIT": "10m",
        }


@contextmanager
def central_airflow(home: Home, queues: Mapping[str, str]) -> Iterator[Site]:
    """Run Airflow's central parts for workers elsewhere; `queues`: those of tasks, by their ids, else `default`."""
    port = free_port(8080)
    address = f"http://127.0.0.1:{port}"
    policy = home.path / "airflow" / "config" / "airflow_local_settings.py"
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text(_POLICY.format(queues=dict(queues)))
    with settings_of(home, **_DECLARED):
        environment = {**airflow_environment(port), **_for_workers(address)}
    environment["PYTHONPATH"] = f"{_site_packages()}:{REPOSITORY}"
    log = home.path / "airflow.log"
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", "include.services.airflow"], env=environment, cwd=REPOSITORY,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"Airflow: {log}", lambda: started.poll() is not None or not unhealthy_parts(address), 300)
        assert started.poll() is None, log.read_text()[-3000:]
        with settings_of(home):
            ensure_pool(address)
        yield Site(home, address, environment)
    finally:
        parts = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.wait(60)
        psutil.wait_procs(parts, timeout=60)


_DECLARED = {"TIDEMARK_LEASE_SECONDS": "15", "TIDEMARK_ARCHIVE_WAIT": "10m"}
"""The shipped lease: what is measured here is what users get."""


def _for_workers(address: str) -> dict[str, str]:
    """What deployment.md tells to set for several workers."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "airflow.providers.edge3.executors.EdgeExecutor",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__EDGE__API_ENABLED": "True",
        "AIRFLOW__EDGE__API_URL": f"{address}/edge_worker/v1/rpcapi",
        "AIRFLOW__EDGE__HEARTBEAT_INTERVAL": "5",
        "AIRFLOW__EDGE__JOB_POLL_INTERVAL": "1",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "5",
    }


def _site_packages() -> Path:
    (found,) = tool_environment("edge-workers").parent.glob("lib/python3*/site-packages")
    return found
