"""Drivers of streams, launched detached: what became of one, how it is stopped, and when it is replaced.

The ledger knows, so that every host can find out: a process that is visible here only makes the answer come sooner.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from include.airflow.on_cluster import applications
from include.crash_points import crash_point
from include.errors import one_line
from include.lake import delta_tables
from include.ledger.streams import launches, restarts, writers
from include.pipelines import load_pipeline
from include.processes import ProcessIdentity
from include.settings import settings
from include.spark.driver_lines import end_of_log
from include.spark.submission import submission
from include.streams import new_code

TAIL = 15
"""How many lines of a driver's log are shown when it failed."""

_SHOWN, _READ = 5, 16_384
"""How many lines of a live driver's log are shown per look, and how many bytes are read for them."""


def this_host() -> str:
    """Return where a pid means the same process as here: host name, boot and pid namespace.

    Containers may share a host's name, and a pid means another process in each.
    """
    here = ProcessIdentity.of(os.getpid())
    return f"{socket.gethostname()}/{here.boot_id}/{here.pid_namespace}"


def launch_driver(pipeline: str) -> launches.Launch:
    """Note the intent in the ledger, start the pipeline's driver in a session of its own, and return its launch."""
    launch = uuid.uuid4().hex
    log = settings().home / "logs" / "streams" / f"{pipeline}-{launch[:8]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    launches.note_intent(launch, pipeline, this_host(), str(log))
    declared = load_pipeline(pipeline)
    delta = delta_tables.has_delta_table(declared)
    arguments, decoder = ("--pipeline", pipeline), declared.decoder
    # A process that can be watched, whatever mode the commands use.
    resolved = submission("stream", *arguments, name=f"stream {pipeline}", delta=delta, decoder=decoder, mode="client")
    with log.open("ab") as output:
        process = subprocess.Popen(
            resolved.command(),
            env={**os.environ, **resolved.env, "TIDEMARK_LAUNCH": launch},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    launches.note_pid(launch, process.pid)
    crash_point("driver_launched")
    noted = launches.find(launch)
    assert noted is not None
    return noted


def look_at(pipeline: str, launch: str) -> dict[str, Any] | None:
    """Return what became of a driver: finished (with its exit code), released, or died; None while it is well.

    An empty `launch` is a driver that a person started: nobody notes its end, so its lease decides.
    """
    if not launch:
        return None if writers.live_writer(pipeline) is not None else {"event": "released"}
    noted = launches.find(launch)
    if noted is not None and noted.exit_code is not None:
        return {"event": "finished", "exit_code": noted.exit_code}
    if writers.live_writer(pipeline) is not None:
        return None
    if noted is not None and noted.host == applications.HOST:
        return applications.end_of(noted)
    if noted is None or _has_ended(noted) or restarts.age_of(launch) > restarts.STARTING:
        return {"event": "died"}
    return None


def _has_ended(launch: launches.Launch) -> bool:
    """Whether a driver that holds no lease has ended: its process here is gone, or the lease that it took ran out."""
    if launch.host == this_host():
        return process_of(launch) is None
    lapsed = writers.lapsed_writer(launch.pipeline)
    return lapsed is not None and _is_of(launch, lapsed)


def process_of(launch: launches.Launch) -> psutil.Process | None:
    """Return the launch's process on this host; None when it ended, even if its pid now belongs to another."""
    if launch.pid is None or launch.host != this_host():
        return None
    try:
        process = psutil.Process(launch.pid)
        return process if process.environ().get("TIDEMARK_LAUNCH") == launch.id else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def holds_lease(launch: launches.Launch, live: writers.LiveWriter) -> bool:
    """Return whether the launch's driver holds the live lease, wherever it runs, and not one that a person started."""
    if launch.exit_code is not None:
        return False
    if launch.host != this_host():
        return _is_of(launch, live)
    # Beside a driver that hangs and lost its lease, a command may hold it: the holder's own process tells.
    if not _is_at(live.holder, launch.host):
        return False
    try:
        holder = psutil.Process(int(live.holder.rsplit(":", 2)[1]))
        return holder.environ().get("TIDEMARK_LAUNCH") == launch.id
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def is_command(live: writers.LiveWriter | None, launch: str) -> bool:
    """Return whether a command holds the lease instead of a driver: only a driver notes a Spark application.

    A launch's own driver notes it only once Spark has started, and may hang before that.
    """
    if live is None or live.application_id:
        return False
    noted = launches.find(launch) if launch else None
    return noted is None or not holds_lease(noted, live)


def _is_of(launch: launches.Launch, writer: writers.LiveWriter) -> bool:
    """Whether the writer is the driver of a launch on another host or on YARN."""
    is_there = launch.host == applications.HOST or _is_at(writer.holder, launch.host)
    return is_there and writer.acquired_at >= launch.launched_at


def _is_at(holder: str, host: str) -> bool:
    """Return whether a lease's holder runs where a launch was noted; by host name if no more was noted of both."""
    name, pid, start = holder.rsplit(":", 2)
    process = ProcessIdentity.parse(f"{pid}:{start}")
    if not process.boot_id or "/" not in host:
        return name == host.split("/")[0]
    return f"{name}/{process.boot_id}/{process.pid_namespace}" == host


def stop_driver(pipeline: str, launch: str, patience: float = 30.0) -> None:
    """Stop a driver after its micro-batch; one that does not end in time is killed here, or shut out elsewhere.

    Wait for a driver of another host that is still starting until it can be asked, but kill one that waits for room on
    YARN. Raises ServiceUnreachable.
    """
    noted = launches.find(launch) if launch else None
    on_yarn = noted is not None and noted.host == applications.HOST
    if on_yarn and noted is not None and applications.is_waiting(noted):
        applications.kill(noted)
        return
    process = process_of(noted) if noted is not None else None
    live = writers.live_writer(pipeline)
    if process is None and live is None and noted is not None and noted.exit_code is None:
        left = restarts.STARTING - restarts.age_of(launch)
        _wait(lambda: writers.live_writer(pipeline) is not None or _ended(launch), left.total_seconds())
        live = writers.live_writer(pipeline)
    # A command, such as an erasure, is not ended in its midst: the next driver waits for it.
    may_be_ended = not is_command(live, launch)
    writers.request_stop(pipeline)
    if process is not None:
        _end(process, patience)
    if live is not None and may_be_ended and not _wait(lambda: not _holds(pipeline, live.token), patience):
        restarts.shut_out(pipeline, live.token)
        if on_yarn and noted is not None:
            applications.kill(noted)


def _holds(pipeline: str, token: int) -> bool:
    live = writers.live_writer(pipeline)
    return live is not None and live.token == token


def _ended(launch: str) -> bool:
    noted = launches.find(launch)
    return noted is None or noted.exit_code is not None


def _end(process: psutil.Process, patience: float) -> None:
    """Wait for a process that was asked to stop; end it with all of its session by signals when it does not."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                os.killpg(process.pid, number)
            with suppress(psutil.TimeoutExpired):
                process.wait(patience)
                return


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time."""
    asking = Retrying(stop=stop_after_delay(max(0.0, seconds)), wait=wait_fixed(1), retry=retry_if_not_result(bool))
    try:
        return bool(asking(condition))
    except RetryError:
        return False


def tail(launch: launches.Launch | None) -> list[str]:
    """Return the last lines of a driver's log; where this host cannot read it, the error with which it ended."""
    if launch is None:
        return []
    if launch.host == applications.HOST:
        return applications.tail(launch, TAIL)
    try:
        return end_of_log(launch.log).splitlines()[-TAIL:]
    except OSError:
        return [launch.error] if launch.error else []


def unreadable_log(launch: launches.Launch | None) -> str:
    """Return why a driver's log cannot be read on its node; empty where it can, or where it is a file."""
    on_yarn = launch is not None and launch.host == applications.HOST
    return applications.unreadable_log(launch) if on_yarn and launch is not None else ""


@dataclass
class DriverLog:
    """A live driver's log, followed from its end: the last lines of what was written since the last look."""

    path: str
    """Empty if nobody noted it: for a driver that a person started."""
    _at: int = 0

    def new_lines(self) -> list[str]:
        """Return the new lines that are shown, printable, at most a few; the rest is counted in the first.

        None if the file cannot be read on this host.
        """
        try:
            with Path(self.path).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                # A log that became shorter was replaced.
                begin = self._at if self._at <= size else 0
                file.seek(max(begin, size - _READ))
                read = file.read()
        except OSError:
            return []
        # An unfinished line is returned once it is complete.
        whole = read[: read.rfind(b"\n") + 1]
        self._at = size - len(read) + len(whole)
        lines = [line for line in whole.decode(errors="replace").splitlines() if line.strip()]
        left_out = len(lines) - _SHOWN
        shown = [one_line(line) for line in lines[-_SHOWN:]]
        return [f"… {left_out} lines before are in {self.path}", *shown] if left_out > 0 else shown


def log_of(launch: str) -> DriverLog | applications.ApplicationLog:
    """Return the log of a launch; for a driver that a person started, one without lines."""
    noted = launches.find(launch) if launch else None
    if noted is not None and noted.host == applications.HOST:
        return applications.ApplicationLog(noted)
    return DriverLog(noted.log if noted else "")


@dataclass
class Deployments:
    """Code deployed while a driver is watched; a deployment is over when two looks in a row see the same."""

    pipeline: str
    _seen: str = ""

    def event(self) -> dict[str, Any] | None:
        """Return the event of a driver to be replaced: its pipeline declares that, and new code continues where it is.

        A driver that runs older code again, because its host has no other, is left alone. Raises ServiceUnreachable.
        """
        newer = new_code.look_closely(self.pipeline)
        if newer is None:
            self._seen = ""
            if new_code.is_current(self.pipeline):
                writers.forget_replacement(self.pipeline)
            return None
        is_settled, self._seen = newer.version == self._seen, newer.version
        may = newer.fit is not None and newer.fit.restarts and not newer.fit.needs
        if is_settled and may and writers.replace_for(self.pipeline, newer.token, newer.version):
            return {"event": "replaced", "changed": [path for path, _ in newer.changed]}
        return None
