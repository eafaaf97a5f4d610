"""What became of a driver, and whether a command holds a lease.

The ledger knows, so that every host can find out: a process that is visible here only makes the answer come sooner.
"""

from __future__ import annotations

import os
from typing import Any

import psutil

from include.airflow.on_cluster import applications
from include.ledger.streams import launches, restarts, writers


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
    if noted is None or has_ended(noted) or restarts.age_of(launch) > restarts.STARTING:
        return {"event": "died"}
    return None


def has_ended(launch: launches.Launch) -> bool:
    """Return whether a driver that holds no lease has ended: its process here is gone, or its lease ran out."""
    if launch.host == launches.this_host():
        return process_of(launch) is None and not _is_of_another_user(launch)
    lapsed = writers.lapsed_writer(launch.pipeline)
    return lapsed is not None and launches.is_of(launch, lapsed)


def _is_of_another_user(launch: launches.Launch) -> bool:
    """Whether the launch's pid belongs to another user's process, which may be the driver."""
    if launch.pid is None:
        return False
    try:
        os.kill(launch.pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False


def process_of(launch: launches.Launch) -> psutil.Process | None:
    """Return the launch's process on this host; None when it ended, even if its pid now belongs to another.

    One whose pid nobody could note any more, because the task was killed or the ledger away, is searched for.
    """
    if launch.host != launches.this_host():
        return None
    if launch.pid is None:
        return next((each for each in psutil.process_iter() if _is_of(each, launch) and _leads_session(each)), None)
    try:
        process = psutil.Process(launch.pid)
    except psutil.NoSuchProcess:
        return None
    return process if _is_of(process, launch) else None


def _is_of(process: psutil.Process, launch: launches.Launch) -> bool:
    try:
        return process.environ().get("TIDEMARK_LAUNCH") == launch.id
    except psutil.Error:
        return False


def _leads_session(process: psutil.Process) -> bool:
    """Whether it is the process that was launched, not one below it."""
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def is_command(live: writers.LiveWriter | None, launch: str) -> bool:
    """Return whether a command holds the lease instead of a driver: only a driver notes a Spark application.

    A launch's own driver notes it only once Spark has started, and may hang before that.
    """
    if live is None or live.application_id:
        return False
    noted = launches.find(launch) if launch else None
    return noted is None or not launches.holds_lease(noted, live)
