"""What became of a driver, and whose driver holds a lease.

The ledger knows, so that every host can find out: a process that is visible here only makes the answer come sooner.
"""

from __future__ import annotations

from typing import Any

import psutil

from include.airflow.on_cluster import applications
from include.ledger.streams import launches, restarts, writers
from include.processes import ProcessOnHost


def this_host() -> str:
    """Return where a pid means the same process as here."""
    return ProcessOnHost.this().place


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
    if noted is not None and noted.is_on_yarn:
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
        return psutil.Process(live.holder.process.pid).environ().get("TIDEMARK_LAUNCH") == launch.id
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
    is_there = launch.is_on_yarn or _is_at(writer.holder, launch.host)
    return is_there and writer.acquired_at >= launch.launched_at


def _is_at(holder: ProcessOnHost, host: str) -> bool:
    """Return whether a lease's holder runs where a launch was noted; by host name if no more was noted of both."""
    if not holder.process.boot_id or "/" not in host:
        return holder.host == host.split("/")[0]
    return holder.place == host
