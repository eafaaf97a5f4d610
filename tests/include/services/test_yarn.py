"""The embedded YARN through the command: started only when named, found dead, back with both nodes, on loopback."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from include.services.yarn import NODES
from tests.conftest import Home, wait_for

NAMES = ("yarn", *NODES)


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Home]:
    """A home folder in which nothing was started."""
    made = Home(tmp_path / "home")
    yield made
    made.run("down", expect=None)


def yarn(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = home.services["yarn"]
    return found


def processes(home: Home) -> list[psutil.Process]:
    states = [json.loads((home.path / "services" / f"{name}.json").read_text()) for name in NAMES]
    return [psutil.Process(state["pid"]) for state in states if state["pid"]]


def test_yarn_is_not_listed_when_it_was_never_started(lone: Home) -> None:
    assert set(lone.services) == {"kafka", "postgres", "registry", "airflow"}
    assert lone.run("down", "yarn").returncode == 0
    assert "yarn" not in lone.services


@pytest.mark.slow
def test_cluster_listens_on_loopback_comes_back_and_ends_without_a_rest(lone: Home) -> None:
    lone.run("up", "yarn")
    first = processes(lone)
    assert len(first) == 3
    found = yarn(lone)
    assert (found["healthy"], found["pid"], found["detail"]) == (True, first[0].pid, "2 of 2 nodes")
    assert found["address"].startswith("http://127.0.0.1:")
    listening = {
        connection.laddr.ip
        for process in first
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}

    lone.run("up", "yarn")
    assert processes(lone) == first

    os.kill(first[1].pid, signal.SIGKILL)
    found = wait_for("the node to be missed", lambda: None if (now := yarn(lone))["healthy"] else now, 60)
    assert found["pid"] == first[0].pid
    doctor = json.loads(lone.run("doctor", "--json", expect=1).stdout)
    told = [(each["ok"], each["remedy"]) for each in doctor["findings"] if each["what"].startswith("yarn")]
    assert told == [(False, "./tidemark up yarn")]
    lone.run("up", "yarn")
    assert yarn(lone)["healthy"]

    second = processes(lone)
    os.kill(second[0].pid, signal.SIGKILL)
    psutil.wait_procs(second[:1], timeout=10)
    found = yarn(lone)
    assert (found["healthy"], found["pid"], found["detail"]) == (False, second[1].pid, "no resource manager")
    lone.run("down", "yarn")
    assert not [each for each in second if each.is_running()]
    assert (yarn(lone)["healthy"], yarn(lone)["pid"]) == (False, None)
