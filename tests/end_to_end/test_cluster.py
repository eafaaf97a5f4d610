"""Past one machine: two pipelines on a standalone Spark cluster of a master and two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tenacity import retry, stop_after_delay, wait_fixed

from include.services.process import free_port
from tests.conftest import REPOSITORY, Home, end_of, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow, pytest.mark.timeout(2400)]

START = last_hours(3)
EVENTS = 2000
HOUR = timedelta(hours=1)


@dataclass
class Cluster:
    """A running cluster and what its workers said."""

    master: str
    work: Path

    def executors(self) -> Counter[str]:
        """How many executors each worker has run so far."""
        return Counter(path.parts[len(self.work.parts)] for path in self.work.glob("worker-*/app-*/*/stderr"))


def spark_class(name: str, *arguments: str, log: Path, **environment: str) -> subprocess.Popen[str]:
    binary = Path(sys.executable).parent / "spark-class"
    with log.open("w") as file:
        return subprocess.Popen(
            [str(binary), f"org.apache.spark.deploy.{name}", *arguments],
            env={**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            stdout=file, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    # An application takes two cores of the four, so that a stream and an interval run side by side.
    options = {"SPARK_MASTER_OPTS": "-Dspark.deploy.defaultCores=2"}
    bind = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
    started = [spark_class("master.Master", *bind, log=folder / "master.log", **options)]
    for number in (1, 2):
        started.append(
            spark_class(
                "worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--work-dir",
                str(folder / f"worker-{number}"), "--webui-port", "0", master, log=folder / f"worker-{number}.log",
            )
        )  # fmt: skip

    @retry(stop=stop_after_delay(60), wait=wait_fixed(0.5))
    def wait_for_workers() -> None:
        state = httpx.get(f"http://127.0.0.1:{page}/json/", timeout=5).json()
        assert [worker["state"] for worker in state["workers"]] == ["ALIVE", "ALIVE"]

    try:
        wait_for_workers()
        yield Cluster(master, folder)
    finally:
        for process in started:
            end_of(process)


@pytest.fixture(scope="module")
def on_cluster(home: Home, cluster: Cluster) -> dict[str, str]:
    """The settings under which the home's jobs run on the cluster, after records were produced."""
    for pipeline in ("nest_cameras", "isp_hits"):
        arguments = ["--events", str(EVENTS), "--bad-fraction", "0.02", "--start", iso(START), "--span", "3h"]
        home.run("produce", pipeline, *arguments)
    return {"TIDEMARK_SPARK_MASTER": cluster.master}


def test_stream_and_interval_run_side_by_side_on_both_workers(
    home: Home, cluster: Cluster, on_cluster: dict[str, str]
) -> None:
    verdicts: dict[str, Any] = {}
    stream = home.start("stream", "nest_cameras", **on_cluster)
    try:
        assert stream.stderr is not None
        committed = 0
        while committed < EVENTS:
            line = stream.stderr.readline()
            assert line, "the stream ended"
            if found := re.search(r"micro-batch \d+ committed: (\d+) records", line):
                committed += int(found[1])
        verdicts["nest_cameras"] = run_interval(home, "nest_cameras", on_cluster)
        assert stream.poll() is None
    finally:
        stream.terminate()
        deadline = time.monotonic() + 120
        while stream.poll() is None and time.monotonic() < deadline:
            if not stream.stderr or not stream.stderr.readline():
                break
        assert stream.wait(timeout=60) == 0
    home.run("stream", "isp_hits", "--until-caught-up", **on_cluster)
    verdicts["isp_hits"] = run_interval(home, "isp_hits", on_cluster)
    executors = cluster.executors()
    assert set(executors) == {"worker-1", "worker-2"}, executors
    topics = {"nest_cameras": "nest-logs", "isp_hits": "isp-hits"}
    for pipeline, verdict in verdicts.items():
        assert verdict["reconciliation"]["unexplained"] == 0
        archive = [r for r in verdict["registered"] if r["table"] == pipeline]
        rows = audit.identities(audit.read_parquet([r["location"] for r in archive]))
        assert max(rows.values()) == 1
        inside = audit.in_ranges(audit.read_topic(home.kafka, topics[pipeline]), verdict["ranges"])
        assert {row[:3] for row in rows} <= set(inside)
        assert len({row[:3] for row in rows}) == verdict["records"]["archived"] > 0
        assert len(inside) == verdict["records"]["in_ranges"]


def run_interval(home: Home, pipeline: str, on_cluster: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = home.json(
        "interval", pipeline, "--from", iso(START), "--to", iso(START + HOUR), **on_cluster
    )
    return found


def test_same_interval_has_the_same_content_on_the_cluster_and_on_one_machine(
    home: Home, on_cluster: dict[str, str]
) -> None:
    begun = START + HOUR
    there = home.json("interval", "isp_hits", "--from", iso(begun), "--to", iso(begun + HOUR), **on_cluster)
    here = home.json("interval", "isp_hits", "--from", iso(begun), "--to", iso(begun + HOUR))
    hashes = [{(r["table"], r["partition"]): r["content_hash"] for r in v["registered"]} for v in (there, here)]
    assert hashes[0] == hashes[1]
    assert hashes[0]
