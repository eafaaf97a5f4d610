"""Launches drivers of streams in sessions of their own, and stops drivers wherever they run."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from contextlib import suppress

import psutil

from include.airflow.driver.liveness import has_ended, is_command, process_of
from include.airflow.on_cluster import applications
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.streams import launches, restarts, writers
from include.pipelines import load_pipeline
from include.processes import wait_ended
from include.settings import settings
from include.spark.submission import stream_submission
from include.waiting import wait_for


def launch_driver(pipeline: str, launch: str = "") -> launches.Launch:
    """Note the intent in the ledger, start the pipeline's driver in a session of its own, and return its launch.

    `launch` is its id, by default a new one. Raises the errors of `stream_submission`, with nothing noted.
    """
    launch = launch or uuid.uuid4().hex
    log = settings().home / "logs" / "streams" / f"{pipeline}-{launch[:8]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # A process that can be watched, whatever mode the commands use. Before the intent: to other hosts, a driver that
    # cannot be submitted, e.g. on a full disk, would look like one that starts.
    resolved = stream_submission(load_pipeline(pipeline), mode="client")
    launches.note_intent(launch, pipeline, launches.this_host(), str(log))
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


def note_unsubmitted(pipeline: str, launch: str, error: Exception) -> None:
    """Count a launch among the failures whose driver could not be submitted; without effect once its intent is noted.

    While the ledger is away, nothing is noted.
    """
    # Of a library's error, as of a driver's, only the name is kept.
    known = error if isinstance(error, TidemarkError) else TidemarkError(type(error).__name__)
    with suppress(TidemarkError):
        launches.note_unsubmitted(launch, pipeline, known.exit_code, str(known))


def stop_driver(pipeline: str, launch: str, patience: float = 30.0) -> None:
    """Stop a driver after its micro-batch; one that does not end in time is killed here, or shut out elsewhere.

    Wait for a driver of another host that is still starting until it can be asked, but kill one that waits for room on
    YARN. Raises ServiceUnreachable.
    """
    noted = launches.find(launch) if launch else None
    if noted is not None and noted.is_on_yarn and applications.is_waiting(noted):
        applications.kill(noted)
        return
    process = process_of(noted) if noted is not None else None
    live = writers.live_writer(pipeline)
    if process is None and live is None and noted is not None and noted.exit_code is None and not has_ended(noted):
        left = restarts.STARTING - restarts.age_of(launch)
        wait_for(lambda: writers.live_writer(pipeline) is not None or _ended(launch), seconds=left.total_seconds())
        live = writers.live_writer(pipeline)
    # A command, such as an erasure, is not ended in its midst: the next driver waits for it.
    may_be_ended = not is_command(live, launch)
    writers.request_stop(pipeline)
    if process is not None:
        _end(process, patience)
    if live is not None and may_be_ended and not wait_for(lambda: not _holds(pipeline, live.token), seconds=patience):
        restarts.shut_out(pipeline, live.token)
        if noted is not None and noted.is_on_yarn:
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
            if not wait_ended([process], patience):
                return
