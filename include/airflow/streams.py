"""Streams under Airflow: a driver launched detached, watched by a trigger, adopted by the next run.

A long task would die with the API server and leave its driver behind; a driver that belongs to no
task lives on through restarts of Airflow, and the ledger knows where it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.lake import delta_tables
from include.ledger.models import StreamLaunch
from include.ledger.streams import launches, writers
from include.pipelines import load_pipeline
from include.settings import settings
from include.spark.submission import JOBS, submission

STARTING = timedelta(seconds=180)
"""How long a driver may take until it holds its lease."""

_TAIL = 15

_FINAL = {4, 64}
"""Exit codes after which a retry would end the same way: offsets lost, wrong settings."""


class StreamTrigger(BaseTrigger):
    """Watches a driver through the ledger; fires when it finished, died, or never came up."""

    def __init__(self, pipeline: str, launch: str, poll_seconds: float = 2.0) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.launch = launch
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        arguments = {"pipeline": self.pipeline, "launch": self.launch, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the driver until there is something to tell."""
        while True:
            event = await asyncio.to_thread(look_at, self.pipeline, self.launch)
            if event is not None:
                yield TriggerEvent(event)
                return
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """The task was ended by a person: stop the driver. (A restarting triggerer only cleans up.)"""
        await asyncio.to_thread(stop_driver, self.pipeline, self.launch)


def look_at(pipeline: str, launch: str) -> dict[str, Any] | None:
    """What became of a driver: finished (with its exit code), released, died or stalled; None while it is well.

    An empty `launch` is a driver that somebody started by hand: nobody noted its end, its lease tells.
    """
    if not launch:
        return None if writers.live_writer(pipeline) is not None else {"event": "released"}
    found = launches.find(launch)
    if found is not None and found.exit_code is not None:
        return {"event": "finished", "exit_code": found.exit_code}
    if writers.live_writer(pipeline) is not None:
        return None
    if found is None or (found.host == socket.gethostname() and process_of(found) is None):
        return {"event": "died"}
    if datetime.now(UTC) - found.launched_at > STARTING:
        return {"event": "stalled"}
    return None


def process_of(launch: StreamLaunch) -> psutil.Process | None:
    """The launch's process on this host; None when it ended, though its pid may belong to another by now."""
    if launch.pid is None or launch.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(launch.pid)
        return process if process.environ().get("TIDEMARK_LAUNCH") == launch.id else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def stop_driver(pipeline: str, launch: str, patience: float = 30.0) -> None:
    """Ask the driver to stop after its micro-batch; end it by signals when it does not."""
    writers.request_stop(pipeline)
    found = launches.find(launch)
    process = process_of(found) if found is not None else None
    if process is None:
        return
    try:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                os.killpg(process.pid, number)
            try:
                process.wait(patience)
            except psutil.TimeoutExpired:
                continue
            return
    except (psutil.NoSuchProcess, ProcessLookupError):
        return


class StreamOperator(SparkSubmitOperator):
    """Makes sure that the pipeline's driver runs, then waits for its end without a worker slot."""

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(application=str(JOBS / "stream.py"), name=f"stream {pipeline}", durable=False, **kwargs)
        self.pipeline = pipeline
        self._watched: str | None = None

    def execute(self, context: Context) -> None:
        """Adopt the live driver, or note the intent and launch one; then defer."""
        live = writers.live_writer(self.pipeline)
        known = launches.last(self.pipeline)
        if live is not None:
            ours = known is not None and known.exit_code is None and process_of(known) is not None
            launch = known.id if known is not None and ours else ""
            self.log.info("adopting the driver that runs already: %s, fencing token %s", live.holder, live.token)
        elif known is not None and known.exit_code is None and look_at(self.pipeline, known.id) is None:
            launch = known.id
            self.log.info("adopting a driver that is starting: pid %s", known.pid)
        else:
            if known is not None and process_of(known) is not None:
                self.log.info("the driver before never took its lease: stopping pid %s first", known.pid)
                stop_driver(self.pipeline, known.id, patience=10)
            launch = self._launch()
        self._watched = launch
        found = launches.find(launch)
        context["ti"].xcom_push(key="log", value=found.log if found else "")
        self.defer(
            trigger=StreamTrigger(self.pipeline, launch), method_name="execute_complete", kwargs={"launch": launch}
        )

    def on_kill(self) -> None:
        """The task was ended before it was deferred: stop the driver."""
        if self._watched is not None:
            stop_driver(self.pipeline, self._watched, patience=10)

    def _launch(self) -> str:
        launch = uuid.uuid4().hex
        self._watched = launch
        log = settings().home / "logs" / "streams" / f"{self.pipeline}-{launch[:8]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        launches.note_intent(launch, self.pipeline, socket.gethostname(), str(log))
        delta = delta_tables.is_kept(load_pipeline(self.pipeline))
        resolved = submission("stream", "--pipeline", self.pipeline, name=f"stream {self.pipeline}", delta=delta)
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
        self.log.info("launched the driver: pid %s, log %s", process.pid, log)
        return launch

    def execute_complete(self, context: Context, event: dict[str, Any], launch: str) -> None:
        """Succeed when the driver was stopped; fail, with the end of its log, when it failed or died."""
        if event == {"event": "finished", "exit_code": 0}:
            self.log.info("the driver was asked to stop and finished its micro-batch")
            return
        if event["event"] == "released":
            self.log.info("the driver that was started by hand is gone; the next run starts one")
            return
        found = launches.find(launch)
        tail = _tail(Path(found.log)) if found else []
        for line in tail:
            self.log.error("driver: %s", line)
        code = f" with exit code {event['exit_code']}" if "exit_code" in event else ""
        kind = AirflowFailException if event.get("exit_code") in _FINAL else AirflowException
        raise kind(
            f"the driver of {self.pipeline} {event['event']}{code}; its log: {found.log if found else 'unknown'}"
            + (f"; last line: {tail[-1]}" if tail else "")
        )


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []
