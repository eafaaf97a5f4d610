"""Services on loopback when the environment names a proxy, which cannot reach them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from include.airflow.api import AirflowApi
from include.deploy import check_health
from include.environment import foreign
from include.errors import ServiceUnreachable
from include.schemas.registry import SchemaRegistry
from include.services import airflow, process, yarn
from include.spark import yarn as applications
from tests.conftest import REPOSITORY, SetSettings
from tests.support.json_server import answering

PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
APPLICATION = {"id": "application_1_1", "state": "RUNNING", "finalStatus": "UNDEFINED", "launchTime": 0}
ANSWERS = {
    "/api/v2/monitor/health": {part: {"status": "healthy"} for part in PARTS},
    "/auth/token": {"access_token": "token"},
    "/api/v2/pools": {},
    "/api/v2/importErrors": {"import_errors": []},
    "/subjects": ["readings-value"],
    "/ws/v1/cluster/metrics": {"clusterMetrics": {"activeNodes": 2}},
    "/ws/v1/cluster/apps/application_1_1": {"app": APPLICATION},
}


@pytest.fixture
def asked() -> list[str]:
    """What the server was asked: a path or, by those who take it for a proxy, a whole URL."""
    return []


@pytest.fixture
def address(asked: list[str]) -> Iterator[str]:
    """A server on loopback that answers for all the services."""

    def answer(method: str, path: str, body: dict[str, Any]) -> tuple[int, object]:
        asked.append(path)
        return 200, ANSWERS[urlsplit(path).path]

    with answering(answer) as served:
        yield served


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    set_settings(TIDEMARK_HOME=str(tmp_path), TIDEMARK_DATABASE_URL="postgresql://tidemark:secret@127.0.0.1:5432")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_services_on_loopback_answer_when_a_proxy_is_named(
    address: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    there = address.replace("127.0.0.1", host)
    assert airflow.unhealthy_parts(there) == []
    airflow.ensure_pool(there)
    assert AirflowApi(there, "admin", "password").import_errors() == []
    assert SchemaRegistry(there).subjects() == ["readings-value"]
    assert yarn._nodes(there) == 2
    assert applications.find(there, "application_1_1") is not None
    assert check_health.main(["part", f"{there}/api/v2/monitor/health", "scheduler"]) == 0


def test_registry_elsewhere_is_asked_through_the_proxy_when_one_is_named(
    address: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", address)
    assert SchemaRegistry("http://registry.example:8081").subjects() == ["readings-value"]
    assert asked == ["http://registry.example:8081/subjects"]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(ServiceUnreachable):
        SchemaRegistry("http://registry.example:8081").subjects()


def test_parts_of_airflow_ask_each_other_without_a_proxy_when_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.org, localhost")
    environment = airflow.airflow_environment(8080)
    assert environment["NO_PROXY"] == environment["no_proxy"] == "example.org,localhost,127.0.0.1"
    assert environment["HTTP_PROXY"] == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "*"}, "*"),
        # As httpx and urllib do: the lower case wins.
        ({"NO_PROXY": "a.example", "no_proxy": "b.example"}, "b.example,127.0.0.1,localhost"),
        ({"NO_PROXY": "fd00::/8, [::1],10.0.0.0/8"}, "::1,10.0.0.0/8,127.0.0.1,localhost"),
    ],
)
def test_loopback_is_added_to_what_is_asked_without_a_proxy(named: dict[str, str], wanted: str) -> None:
    assert foreign.no_proxy(named) == {"no_proxy": wanted, "NO_PROXY": wanted}


def test_services_answer_when_a_proxy_or_an_exception_is_none_that_httpx_knows(
    address: str, asked: list[str], tmp_path: Path
) -> None:
    """As dual-stack clusters and desktops export them: each would stop every command before it asks anybody."""
    process.write_started("airflow", psutil.Process(), address=address, port=urlsplit(address).port)
    for named in (
        {"NO_PROXY": "localhost,.svc,10.0.0.0/8,fd00::/8"},
        {"no_proxy": "[::1], [fe80::1%eth0]:8080,two words,::1,*.example.net,db.example.net:5432"},
        {"ALL_PROXY": "socks5h://127.0.0.1:9"},
        {"all_proxy": "socks://127.0.0.1:9/", "http_proxy": "http://127.0.0.1:9"},
    ):
        asked.clear()
        told = subprocess.run(
            [sys.executable, "-m", "include.cli", "status", "--json"],
            env={**os.environ, **named},
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
        )
        assert told.returncode == 0, (named, told.stderr)
        assert json.loads(told.stdout)["services"]["airflow"]["healthy"], named
        assert "/api/v2/monitor/health" in asked


def test_proxies_that_httpx_knows_are_kept_when_others_are_taken_out() -> None:
    kept = {"http_proxy": "proxy.example:3128", "HTTPS_PROXY": "http://proxy.example:3128", "PATH": "/bin"}
    environment = {**kept, "ALL_PROXY": "socks5://proxy.example:1080"}
    foreign.take_out_proxies(environment)
    assert environment == kept
