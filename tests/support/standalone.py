"""A standalone Spark cluster on this machine: a master and workers, as processes of their own."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tenacity import retry, stop_after_delay, wait_fixed

from include.services.process import free_port
from include.settings import REPOSITORY
from include.spark.jars import pyspark_home


@dataclass
class Cluster:
    """A running cluster and what its workers said."""

    master: str
    work: Path

    def executors(self) -> Counter[str]:
        """How many executors each worker has run so far."""
        return Counter(path.parts[len(self.work.parts)] for path in self.work.glob("worker-*/app-*/*/stderr"))


@contextmanager
def standalone_cluster(folder: Path, *, workers: int, cores: int, cores_of_application: int) -> Iterator[Cluster]:
    """A cluster whose workers have as many cores each; killed at the end."""
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    options = {"SPARK_MASTER_OPTS": f"-Dspark.deploy.defaultCores={cores_of_application}"}
    bind = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
    started = [_spark_class("master.Master", *bind, log=folder / "master.log", **options)]
    for number in range(1, workers + 1):
        own = ("--cores", str(cores), "--memory", "2g", "--work-dir", str(folder / f"worker-{number}"))
        at = ("--host", "127.0.0.1", "--webui-port", "0", master)
        started.append(_spark_class("worker.Worker", *own, *at, log=folder / f"worker-{number}.log"))

    @retry(stop=stop_after_delay(60), wait=wait_fixed(0.5))
    def wait_for_workers() -> None:
        state = httpx.get(f"http://127.0.0.1:{page}/json/", timeout=5).json()
        assert [worker["state"] for worker in state["workers"]] == ["ALIVE"] * workers

    try:
        wait_for_workers()
        yield Cluster(master, folder)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _spark_class(name: str, *arguments: str, log: Path, **environment: str) -> subprocess.Popen[str]:
    binary = pyspark_home() / "bin" / "spark-class"
    fixed = {"SPARK_HOME": str(pyspark_home()), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("w") as file:
        return subprocess.Popen(
            [str(binary), f"org.apache.spark.deploy.{name}", *arguments],
            env={**os.environ, **fixed, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
        )
