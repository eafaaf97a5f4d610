"""What all embedded services share: start in the background, state file, ports, waiting, stopping."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import fasteners
import psutil

from include.errors import ServiceUnreachable
from include.processes import ProcessIdentity, runs, wait_ended
from include.setting_values import masked
from include.settings import REPOSITORY, settings, write_private
from include.waiting import wait_for

_FIRST_PORT = 15_000
"""Lowest port for an embedded service: well-known services listen below it."""


@dataclass(frozen=True)
class ServiceStatus:
    """The address and health of a service."""

    address: str
    healthy: bool
    pid: int | None
    external: bool = False
    """Whether a setting names it, so that it is not an embedded one."""
    detail: str = ""
    is_broken: bool = False
    """Whether some of its processes have ended, so that it will not become healthy by itself."""


@contextmanager
def services_lock() -> Iterator[None]:
    """Hold the home folder's lock, so that only one `up` or `down` runs at a time."""
    path = settings().home / "services" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with fasteners.InterProcessLock(path):
        yield


def log_path(name: str) -> Path:
    """Return the log file of a service, its folder created."""
    path = settings().home / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def embedded_addresses() -> dict[str, str]:
    """Return where embedded services listen, by the setting that names another, as people read it: passwords masked."""
    found = {}
    for setting, name in (("KAFKA_BOOTSTRAP", "kafka"), ("DATABASE_URL", "postgres"), ("REGISTRY_URL", "registry")):
        address = read_state(name).get("address")
        found[f"TIDEMARK_{setting}"] = f"{masked(address)} (embedded)" if address else "(embedded, never started)"
    return found


def read_state(name: str) -> dict[str, Any]:
    """Return the content of the service's state file; empty when the service was never started.

    Raise UsageError when the service runs, and is that of another home, of which this one is a copy.
    """
    state = settings().service_state(name)
    if running(state) is not None:
        settings().check_not_copied(name)
    return state


def write_state(name: str, **state: Any) -> None:
    """Write the service's state file (0600), synced: nothing else knows the password of an embedded PostgreSQL."""
    write_private(settings().home / "services" / f"{name}.json", json.dumps(state, indent=1) + "\n", durable=True)


def write_started(name: str, started: psutil.Process, **state: Any) -> None:
    """Write the state file of a service that this home has just started, with the identity of its process."""
    try:
        identity = str(ProcessIdentity.of(started.pid))
    except ProcessLookupError:
        # It has ended already, which `wait_until` reports.
        identity = ""
    log = _file_at(log_path(name))
    whose = {"home": str(settings().home), "checkout": str(REPOSITORY)}
    write_state(name, **state, **whose, pid=started.pid, process=identity, log=log)


def running(state: Mapping[str, Any]) -> psutil.Process | None:
    """Return the running process that a state file names; None when it ended or another process has its pid."""
    if not state.get("pid"):
        return None
    # Older versions wrote `started`, the wall-clock start time, instead of `process`.
    identity = ProcessIdentity.parse(state.get("process") or f"{state['pid']}:{state.get('started') or 0}")
    try:
        return psutil.Process(identity.pid) if identity.is_running() else None
    except psutil.NoSuchProcess:
        return None


def open_addresses(name: str) -> list[str]:
    """Return the addresses, `IP:port`, at which a running service of this home listens to other machines, too."""
    started = running(read_state(name))
    listening = {(ip_address(ip), port) for ip, port in _listening(started)} if started else set()
    plain = {(getattr(ip, "ipv4_mapped", None) or ip, port) for ip, port in listening}
    return sorted(f"{ip}:{port}" for ip, port in plain if not ip.is_loopback)


def start_detached(
    name: str, command: Sequence[str], env: Mapping[str, str] | None = None, *, descriptors: Sequence[int] = ()
) -> psutil.Process:
    """Start a service in its own session and append its output to its log.

    `env` is all of its environment; it inherits the `descriptors`.
    """
    with log_path(name).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
            pass_fds=descriptors,
        )
    return psutil.Process(process.pid)


def _first_ephemeral_port() -> int:
    """Return the lowest port that the kernel gives to outgoing connections."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    return max(first, _FIRST_PORT + 1_000)


def free_port(preferred: int | None = None) -> int:
    """Return the preferred port if it is free on loopback, else another free port.

    Ports for outgoing connections are the last choice: a connection could take the port before the service does.
    Raise ServiceUnreachable when no port is free.
    """
    others = random.sample(range(_FIRST_PORT, _first_ephemeral_port()), 20)
    for port in (*([preferred] if preferred else []), *others, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServiceUnreachable("no free port on 127.0.0.1", remedy="end some other service")


def free_ports(preferred: Mapping[str, int | None]) -> dict[str, int]:
    """Return a free port for each use, all different: the preferred ones if they are free.

    Raise ServiceUnreachable when no port is free.
    """
    chosen = dict[str, int]()
    for use, wanted in preferred.items():
        port = free_port(wanted)
        while port in chosen.values():
            port = free_port()
        chosen[use] = port
    return chosen


def listens(process: psutil.Process, port: int) -> bool:
    """Return whether a process, or one that it started, listens on that port: an answer there may be another's."""
    return any(own == port for _, own in _listening(process))


def _listening(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """Yield IP and port at which a process, and each that it started, listens."""
    family = [process]
    with suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
    for each in family:
        # One that serves a connection may have ended with it.
        with suppress(psutil.NoSuchProcess):
            found = each.net_connections("inet")
            yield from ((one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN)


def wait_until(name: str, ready: Callable[[], bool], process: psutil.Process | None, seconds: float) -> None:
    """Wait until a service is ready. Raise ServiceUnreachable, naming its log, when it ends or takes too long."""

    def stage() -> str:
        if ready():
            return "ready"
        if process is not None and not runs(process):
            return "ended"
        return ""

    result = wait_for(stage, seconds=seconds, every=0.3) or f"was not ready within {seconds:.0f} s"
    if result != "ready":
        raise ServiceUnreachable(f"the embedded {name} {result} at its start", remedy=f"read {log_path(name)}")


def _session_id(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def session_of(leader: int) -> list[psutil.Process]:
    """Return the running processes of a session: all that its leader started, also those whose parent was killed.

    Those in a session of their own, such as streams that Airflow launched, do not belong to it.
    """
    return [each for each in psutil.process_iter() if _session_id(each) == leader]


def stop_service(name: str, number: signal.Signals = signal.SIGTERM) -> None:
    """Stop an embedded service if it is running."""
    service = running(read_state(name))
    if service is not None:
        stop(service, 30, number)


def stop(process: psutil.Process, seconds: float, number: signal.Signals = signal.SIGTERM) -> None:
    """Stop an embedded service and its session: send a signal, then SIGKILL after `seconds`."""
    family = [process, *(each for each in session_of(process.pid) if each != process)]
    # It may end by itself at this moment.
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
    wait_ended(family[:1], seconds)
    _kill(wait_ended(family, 2))


def end_left_over(name: str) -> None:
    """Kill what a service left running that was killed itself.

    A child that outlives its parent keeps the parent's connections open, and with them what these hold in a database.
    """
    state = read_state(name)
    if not state.get("pid") or running(state) is not None:
        return
    # Older versions noted no log.
    log = state.get("log") or _file_at(log_path(name))
    # The pid may be another session's by now, whose processes write elsewhere.
    _kill([each for each in session_of(state["pid"]) if _has_open(each, log)])


def _file_at(path: Path) -> list[int]:
    """Return what names a file for ever: several paths may lead to it, and it may be moved; empty without a file."""
    try:
        found = path.stat()
    except OSError:
        # It was removed, or cannot be looked at, as what was closed meanwhile.
        return []
    return [found.st_dev, found.st_ino]


def _has_open(process: psutil.Process, file: list[int]) -> bool:
    try:
        return bool(file) and any(_file_at(each) == file for each in Path(f"/proc/{process.pid}/fd").iterdir())
    except OSError:
        return False


def _kill(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    wait_ended(processes, 5)
