"""The embedded Airflow's start, and its end when a part of it was killed."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import psutil
import psycopg2
import pytest

from include.services import airflow, process
from tests.conftest import Home, lives, settings_of

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.slow]


def test_airflow_starts_at_another_port_when_its_own_is_taken_before_it_listens(
    new_home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home()
    home.run("up", "postgres")
    with socket.create_server(("127.0.0.1", 0)) as other:
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


def test_nobody_holds_a_connection_when_the_scheduler_was_killed(new_home: Callable[..., Home]) -> None:
    home = new_home()
    home.run("up", "postgres")
    home.run("up", "airflow")
    try:
        served = psutil.Process(home._state("airflow")["pid"])
        [scheduler] = [each for each in served.children() if "scheduler" in each.cmdline()]
        workers = scheduler.children(recursive=True)
        assert workers
        scheduler.kill()
        served.wait(60)
        # Otherwise PostgreSQL keeps what the scheduler had locked, and each later one passes over these runs.
        assert [each for each in workers if lives(each)] == []
        assert process.session_of(served.pid) == []
        with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pid, query FROM pg_stat_activity WHERE datname = 'airflow'")
            assert cursor.fetchall() == []
    finally:
        home.end()


def test_airflow_starts_alone_when_everything_but_its_workers_was_killed(new_home: Callable[..., Home]) -> None:
    home = new_home()
    home.run("up", "postgres")
    home.run("up", "airflow")
    try:
        served = psutil.Process(home._state("airflow")["pid"])
        parts = served.children()
        [scheduler] = [each for each in parts if "scheduler" in each.cmdline()]
        workers = scheduler.children(recursive=True)
        for each in (served, *parts):
            each.kill()
        psutil.wait_procs([served, *parts], timeout=30)
        assert any(lives(each) for each in workers)
        home.run("up", "airflow")
        assert [each for each in workers if lives(each)] == []
        assert process.session_of(served.pid) == []
    finally:
        home.end()
