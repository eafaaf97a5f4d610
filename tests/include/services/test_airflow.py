"""The embedded Airflow's start."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import pytest

from include.services import airflow, process
from tests.conftest import Home, settings_of

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
