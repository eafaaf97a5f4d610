"""What `docker compose up` would run, run: each service's command, as its user, on its network, in the given order."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator

import httpx
import pytest
from dotenv import dotenv_values

from include.deploy import generate_env
from tests.support.compose_file import parse, parser
from tests.support.containers import Composition

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow, pytest.mark.timeout(2400)]

TOOLS = ("ip", "nsenter", "setpriv", "unshare")
EVENTS = 200
STARTED = ("kafka", "postgres", "setup", "airflow-migrate", "monitor")
"""Services that are run here."""


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
        composition.up(*STARTED)
        yield composition
    finally:
        composition.down()


def test_services_start_in_the_file_s_order_and_pass_their_own_checks(composition: Composition) -> None:
    for name in ("kafka", "postgres", "monitor"):
        composition.wait_until_healthy(name)
    begun = composition.started
    assert set(begun) == set(STARTED)
    for name in begun:
        assert all(begun.index(other) < begun.index(name) for other in composition.needs(name))
    assert composition.running["airflow-migrate"].wait(600) == 0, composition.log("airflow-migrate")


def test_containers_are_contained(composition: Composition) -> None:
    look = "id -u; hostname; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /run/secrets"
    said = composition.run("monitor", ["bash", "-c", look]).stdout.split()
    zeros = "0" * 16
    assert said == ["10001", "monitor", "CapEff:", zeros, "CapBnd:", zeros, "NoNewPrivs:", "1", "monitor_token"]
    # Pages with figures of the data listen on loopback alone.
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{composition.addresses['monitor']}:8090/health", timeout=10)


def test_services_reach_each_other_by_their_names(composition: Composition) -> None:
    command = ["python", "-m", "include.cli"]
    done = composition.run("monitor", [*command, "produce", "isp_hits", "--events", str(EVENTS)])
    assert done.returncode == 0, done.stderr
    status = composition.run("monitor", [*command, "status", "--json"])
    assert status.returncode == 0, status.stderr
    services = json.loads(status.stdout)["services"]
    assert services["kafka"]["healthy"]
    assert services["kafka"]["address"] == "kafka:9092"
    assert services["postgres"]["healthy"]
    assert services["postgres"]["address"].endswith("@postgres:5432")
    pools = composition.run("airflow-migrate", ["airflow", "pools", "get", "tidemark_spark", "--output", "json"])
    assert json.loads(pools.stdout[pools.stdout.index("[") :])[0]["slots"] == "2"
    passwords = composition.folder / "volumes" / "state" / "airflow" / "passwords.json"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600


def test_services_end_when_they_are_asked_to(composition: Composition) -> None:
    for name in ("monitor", "kafka", "postgres"):
        assert composition.stop(name) not in (-9, 137), composition.log(name)[-2000:]
