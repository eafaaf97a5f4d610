"""What `docker compose up` would run, run: each service's command, as its user, on its network, in the given order."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from dotenv import dotenv_values

from include.deploy import generate_env
from tests.conftest import iso, last_hours
from tests.support.compose_file import parse, parser
from tests.support.containers import Composition

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow, pytest.mark.timeout(2400)]

TOOLS = ("ip", "nsenter", "setpriv", "unshare")
EVENTS = 2000
START = last_hours(3)
WITH_CHECKS = (
    "kafka", "postgres", "spark-master", "spark-worker-1", "spark-worker-2", "airflow-api-server", "airflow-scheduler",
    "airflow-dag-processor", "airflow-triggerer", "monitor",
)  # fmt: skip
"""All but the registry, Prometheus and Grafana, whose images are not this project's to have."""


@pytest.fixture(scope="module")
def composition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    if sys.platform != "linux" or os.geteuid() != 0 or not all(shutil.which(tool) for tool in TOOLS):
        pytest.skip(f"namespaces need root and {', '.join(TOOLS)}")
    folder = tmp_path_factory.mktemp("compose")
    generate_env.write_environment(folder / ".env")
    secrets = {name: value or "" for name, value in dotenv_values(folder / ".env").items()}
    parsed = parse(parser(), secrets)
    assert parsed.returncode == 0, parsed.stderr
    composition = Composition(json.loads(parsed.stdout), secrets, folder)
    try:
        composition.up(*WITH_CHECKS)
        yield composition
    finally:
        composition.down()


def test_every_service_is_healthy_by_its_own_check(composition: Composition) -> None:
    for name in WITH_CHECKS:
        composition.wait_until_healthy(name)
    begun = composition.started
    for name in begun:
        needed = composition.model["services"][name].get("depends_on") or {}
        assert all(begun.index(other) < begun.index(name) for other in needed)
    address = composition.addresses["airflow-api-server"]
    health = httpx.get(f"http://{address}:8080/api/v2/monitor/health", timeout=30).json()
    parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    assert {part: health[part]["status"] for part in parts} == dict.fromkeys(parts, "healthy")


def test_containers_are_contained(composition: Composition) -> None:
    look = "id -u; hostname; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /run/secrets"
    said = composition.run("monitor", ["bash", "-c", look]).stdout.split()
    zeros = "0" * 16
    assert said == ["10001", "monitor", "CapEff:", zeros, "CapBnd:", zeros, "NoNewPrivs:", "1", "monitor_token"]
    # Pages with figures of the data listen on loopback alone.
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{composition.addresses['monitor']}:8090/health", timeout=10)


def test_interval_is_built_by_executors_of_the_workers(composition: Composition) -> None:
    def tidemark(*arguments: str) -> str:
        done = composition.run("airflow-scheduler", ["python", "-m", "include.cli", *arguments], timeout=900)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    tidemark("produce", "isp_hits", "--events", str(EVENTS), "--start", iso(START), "--span", "2h")
    tidemark("stream", "isp_hits", "--until-caught-up")
    hour = timedelta(hours=1)
    verdict = json.loads(tidemark("interval", "isp_hits", "--from", iso(START), "--to", iso(START + hour)))
    assert verdict["records"]["archived"] > 0
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["registered"]
    assert {each["location"].split("/tables/")[0] for each in verdict["registered"]} == {"file:///srv/lake"}
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert composition.run(worker, ["bash", "-c", "ls -d /tmp/work/app-*/*"]).stdout, worker


def test_services_end_when_they_are_asked_to(composition: Composition) -> None:
    for name in ("monitor", "airflow-triggerer", "spark-worker-2", "kafka", "postgres"):
        assert composition.stop(name) not in (-9, 137), composition.log(name)[-2000:]
