"""The embedded Airflow's start, and its end when a part of it was killed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import psutil
import pytest

from include.services import airflow, process
from tests.conftest import Home, lives, settings_of

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.slow]


def test_airflow_starts_at_another_port_when_its_own_is_taken_before_it_listens(
    new_home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home()
    home.run("up", "postgres")
    with socket.create_server(("127.0.0.1", process.free_port())) as other:
        taken = other.getsockname()[1]
        found_free = process.free_port
        # What was free when it was looked at; the other program listens before Airflow does.
        ports = [taken]
        monkeypatch.setattr(process, "free_port", lambda wanted=None: ports.pop() if ports else found_free(wanted))
        try:
            with settings_of(home):
                airflow.up()
                status = airflow.status()
        finally:
            home.end()
    assert status.healthy
    assert not status.address.endswith(f":{taken}")
    with pytest.raises(httpx.ConnectError):
        httpx.get(status.address)


@dataclass
class Served:
    """An embedded Airflow that runs."""

    home: Home
    leader: psutil.Process
    scheduler: psutil.Process
    workers: list[psutil.Process]


@pytest.fixture
def served(new_home: Callable[..., Home]) -> Iterator[Served]:
    home = new_home()
    home.run("up", "postgres")
    home.run("up", "airflow")
    leader = psutil.Process(home._state("airflow")["pid"])
    [scheduler] = [each for each in leader.children() if "scheduler" in each.cmdline()]
    workers = scheduler.children(recursive=True)
    assert workers
    yield Served(home, leader, scheduler, workers)
    home.end()


def test_nobody_holds_a_connection_when_the_scheduler_was_killed(served: Served) -> None:
    served.scheduler.kill()
    served.leader.wait(60)
    # Otherwise PostgreSQL keeps what the scheduler had locked, and each later one passes over these runs.
    assert [each for each in served.workers if lives(each)] == []
    assert process.session_of(served.leader.pid) == []
    assert served.home.ledger("SELECT pid, query FROM pg_stat_activity WHERE datname = 'airflow'") == []


def test_airflow_starts_alone_when_everything_but_its_workers_was_killed(served: Served) -> None:
    every = [served.leader, *served.leader.children()]
    for each in every:
        each.kill()
    psutil.wait_procs(every, timeout=30)
    assert any(lives(each) for each in served.workers)
    served.home.run("up", "airflow")
    assert [each for each in served.workers if lives(each)] == []
    assert process.session_of(served.leader.pid) == []
