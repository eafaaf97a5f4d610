"""Mechanics that all embedded services share: detached start, state file, ports, waiting, stopping."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fasteners
import psutil
from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

from include.errors import ServiceUnreachable
from include.settings import settings, write_private

_FIRST_PORT = 15_000
"""Ports of our own begin here, above those that have names."""


@dataclass(frozen=True)
class ServiceStatus:
    """A service as it is now."""

    address: str
    healthy: bool
    pid: int | None
    external: bool = False
    """Named by a setting instead of embedded."""
    detail: str = ""


@contextmanager
def services_lock() -> Iterator[None]:
    """One `up` or `down` at a time per home folder."""
    path = settings().home / "services" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with fasteners.InterProcessLock(path):
        yield


def log_path(name: str) -> Path:
    """The log file of a service."""
    path = settings().home / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def read_state(name: str) -> dict[str, Any]:
    """What the service wrote about itself; empty when it was never started."""
    return settings().service_state(name)


def write_state(name: str, **state: Any) -> None:
    """Write the service's state file (0600)."""
    write_private(settings().home / "services" / f"{name}.json", json.dumps(state, indent=1) + "\n")


def running(state: Mapping[str, Any]) -> psutil.Process | None:
    """The process that a state file tells of, unless it died or its pid was taken by another."""
    try:
        process = psutil.Process(int(state["pid"]))
        alive = process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - state["started"]) < 2
        return process if alive else None
    except (KeyError, TypeError, psutil.NoSuchProcess):
        return None


def start_detached(name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> psutil.Process:
    """Start a service in its own session, its output appended to its log."""
    with log_path(name).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    return psutil.Process(process.pid)


def _first_ephemeral_port() -> int:
    """The lowest port that the kernel gives to outgoing connections."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    return max(first, _FIRST_PORT + 1_000)


def free_port(preferred: int | None = None) -> int:
    """The preferred port if it is free on loopback, else one that is.

    Not one of those that the kernel gives to outgoing connections: one of them might take it before the service does.
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


def listens(port: int) -> bool:
    """Whether something accepts connections on that loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(name: str, ready: Callable[[], bool], process: psutil.Process | None, seconds: float) -> None:
    """Wait until a service is ready. Raises ServiceUnreachable when it ends or takes too long, naming its log."""

    def state() -> str:
        if ready():
            return "ready"
        if process is not None and (not process.is_running() or process.status() == psutil.STATUS_ZOMBIE):
            return "ended"
        return "waiting"

    waiting = retry(
        retry=retry_if_result(lambda ending: ending == "waiting"), stop=stop_after_delay(seconds), wait=wait_fixed(0.3)
    )(state)
    try:
        ending = waiting()
    except RetryError:
        ending = f"was not ready within {seconds:.0f} s"
    if ending != "ready":
        raise ServiceUnreachable(f"the embedded {name} {ending} at its start", remedy=f"read {log_path(name)}")


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def stop(process: psutil.Process, seconds: float = 20, number: signal.Signals = signal.SIGTERM) -> None:
    """Stop a service that we started, with its children: politely, then with SIGKILL.

    Children in a session of their own (streams that Airflow launched detached) are not part of the service.
    """
    family = [process, *(child for child in process.children(recursive=True) if _session(child) == process.pid)]
    process.send_signal(number)
    psutil.wait_procs(family[:1], timeout=seconds)
    _, alive = psutil.wait_procs(family, timeout=2)
    for survivor in alive:
        survivor.kill()
    psutil.wait_procs(alive, timeout=5)
