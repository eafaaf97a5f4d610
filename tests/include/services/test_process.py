"""Processes of embedded services: whose port it is that answers, and what one leaves that was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from include.doctor.examine import _ports
from include.errors import UsageError
from include.processes import wait_ended
from include.services import supervisor
from include.services.process import (
    ServiceStatus,
    end_left_over,
    free_port,
    free_ports,
    listens,
    log_path,
    open_addresses,
    read_state,
    session_of,
    start_detached,
    stop,
    write_started,
    write_state,
)
from tests.conftest import REPOSITORY, SetSettings, lives, wait_for

LISTEN_BELOW = """
import subprocess, sys
below = '''
import socket, sys
server = socket.create_server((sys.argv[2], int(sys.argv[1])))
print("ready", flush=True)
sys.stdin.read()
'''
subprocess.run([sys.executable, "-c", below, *sys.argv[1:]])
"""


@contextmanager
def listening_below(host: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """A process whose child listens."""
    command = [sys.executable, "-c", LISTEN_BELOW, str(port), host]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.communicate("")


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_address_is_named_when_other_machines_reach_a_service(
    host: str, is_open: bool, tmp_path: Path, set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_HOME=str(tmp_path))
    with listening_below(host, port := free_port()) as started:
        write_started("kafka", psutil.Process(started.pid))
        assert open_addresses("kafka") == ([f"{host}:{port}"] if is_open else [])
        [found] = _ports({"kafka": ServiceStatus(f"127.0.0.1:{port}", True, started.pid)})
    assert (found.ok, f"kafka at {host}:{port}" in found.what) == (not is_open, is_open)


def test_port_belongs_to_a_process_when_it_or_its_child_listens() -> None:
    port, here = free_port(), psutil.Process(os.getpid())
    with listening_below("127.0.0.1", port) as started:
        assert listens(psutil.Process(started.pid), port)
        with socket.create_server(("127.0.0.1", free_port())) as own:
            assert listens(here, own.getsockname()[1])
            # Another's process, which is no child of this one's.
            assert not listens(psutil.Process(started.pid), own.getsockname()[1])
    assert not listens(here, port)


def test_ports_differ_when_the_same_one_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([15_000, 15_000, 15_000, 15_001, 15_001, 15_002])
    monkeypatch.setattr("include.services.process.free_port", lambda wanted=None: wanted or next(drawn))
    assert free_ports({"a": None, "b": 15_000, "c": None}) == {"a": 15_000, "b": 15_001, "c": 15_002}


START_TWO = """
import subprocess, sys
wait = [sys.executable, "-c", "import time; time.sleep(600)"]
between = '''
import subprocess, sys
print(*(subprocess.Popen(sys.argv[1:], start_new_session=apart).pid for apart in (False, True)), flush=True)
'''
subprocess.run([sys.executable, "-c", between, *wait])
print("orphans", flush=True)
subprocess.run(wait)
"""


@pytest.fixture
def family(tmp_path: Path, set_settings: SetSettings) -> Iterator[list[psutil.Process]]:
    """A service, an orphan in its session, and one in a session of its own; a link leads to its home."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    set_settings(TIDEMARK_HOME=str(tmp_path / "home"))
    service = start_detached("airflow", [sys.executable, "-c", START_TWO])
    write_started("airflow", service)
    # The process between has ended by its last word: both have lost their parent.
    words = wait_for("two orphans", lambda: (said := log_path("airflow").read_text()).endswith("orphans\n") and said)
    every = [service, *(psutil.Process(int(pid)) for pid in words.split()[:2])]
    yield every
    for process in every:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_ended(every, 10)


def test_only_its_own_session_ends_when_what_a_killed_service_left_is_ended(family: list[psutil.Process]) -> None:
    service, own, apart = family
    end_left_over("airflow")
    assert [lives(each) for each in family] == [True, True, True]
    service.kill()
    service.wait(10)
    assert lives(own)
    end_left_over("airflow")
    assert [lives(own), lives(apart)] == [False, True]


def test_what_a_killed_service_left_ends_when_the_services_are_stopped_before_they_start_again(
    family: list[psutil.Process],
) -> None:
    service, own, apart = family
    service.kill()
    service.wait(10)
    said: list[str] = []
    supervisor.down(["airflow"], said.append)
    assert [lives(own), lives(apart)] == [False, True]
    assert said == ["ending what is left of airflow"]
    assert read_state("airflow")["pid"] is None
    supervisor.down(["airflow"], said.append)
    assert len(said) == 1


@pytest.mark.parametrize("away", [Path.unlink, lambda log: log.rename(f"{log}.1")], ids=["removed", "rotated"])
def test_what_a_killed_service_left_ends_when_its_log_is_no_longer_there(
    family: list[psutil.Process], away: Callable[[Path], None]
) -> None:
    service, own, apart = family
    away(log_path("airflow"))
    service.kill()
    service.wait(10)
    end_left_over("airflow")
    assert [lives(own), lives(apart)] == [False, True]


def test_process_of_another_service_stays_when_it_has_the_session_of_a_killed_one(
    family: list[psutil.Process],
) -> None:
    service, own, _ = family
    service.kill()
    service.wait(10)
    # As if the pid had been given again: whoever has the session writes elsewhere.
    write_state("airflow", **{**read_state("airflow"), "log": [0, 0]})
    end_left_over("airflow")
    assert lives(own)


def test_orphan_ends_when_the_service_of_its_session_is_stopped(family: list[psutil.Process]) -> None:
    service, own, apart = family
    assert own not in service.children(recursive=True)
    stop(service, 10)
    assert [lives(each) for each in (service, own, apart)] == [False, False, True]


def test_orphan_ends_when_its_service_ends_by_itself_while_it_is_stopped(family: list[psutil.Process]) -> None:
    service, own, _ = family
    service.kill()
    service.wait(10)
    stop(service, 10)
    assert not lives(own)


FORGETS = """
import subprocess, sys
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
sys.stdin.read()
"""


def test_service_has_ended_when_nobody_asks_for_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", FORGETS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    service = psutil.Process(int(parent.stdout.readline()))
    began = time.monotonic()
    stop(service, 5)
    assert service.status() == psutil.STATUS_ZOMBIE
    assert time.monotonic() - began < 4
    parent.communicate("")


SERVES = """
import sys
from include.services import airflow
airflow._AIRFLOW, airflow.PARTS, end = [sys.argv[1]], [["scheduler"]], airflow._end
airflow._end = lambda processes, seconds: end(processes, 1)
sys.exit(airflow.serve())
"""


def test_parts_of_airflow_end_when_it_is_asked_to_end_twice(tmp_path: Path) -> None:
    program = tmp_path / "airflow"
    program.write_text("#!/bin/sh\n[ $1 = db ] && exit\ntrap '' TERM\necho started\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o700)
    served = subprocess.Popen(
        [sys.executable, "-c", SERVES, str(program)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
    )
    assert served.stdout is not None
    try:
        assert served.stdout.readline() == "started\n"
        served.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            served.wait(0.5)
        served.terminate()
        assert served.wait(20) == 0
        assert session_of(served.pid) == []
    finally:
        for each in session_of(served.pid):
            each.kill()


@pytest.mark.parametrize(("name", "remedy"), [("postgres", "put a copy of it there"), ("kafka", "remove it, then")])
def test_state_file_is_named_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings, name: str, remedy: str
) -> None:
    set_settings(TIDEMARK_HOME=str(tmp_path))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_state(name, address="127.0.0.1:15001")
    assert len(synced) == 1
    (tmp_path / "services" / f"{name}.json").write_text("")
    with pytest.raises(UsageError, match=f"{name}.json is not a whole state file — {remedy}"):
        read_state(name)
