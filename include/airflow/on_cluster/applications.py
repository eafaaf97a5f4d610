"""Drivers of streams that YARN runs: handed over, watched, stopped and read from by their application's id.

The lease in the ledger shows whether one works. YARN is asked only if nobody holds the lease: a driver that waits for
room, or whose container is being started, is not dead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.errors import ServiceUnreachable
from include.ledger.streams import launches, restarts
from include.ledger.streams.launches import Launch
from include.pipelines import load_pipeline
from include.spark import yarn
from include.spark.driver_lines import DriverLines, newest_lines, whole_new_lines
from include.spark.submission import SparkSubmission, stream_submission


def launch(pipeline: str, submit: Callable[[SparkSubmission], str], id_: str = "") -> Launch:
    """Note the intent in the ledger, hand the pipeline's driver over to YARN, and return its launch.

    `id_` is its id, by default a new one. `submit` returns the application's id. If this process dies before noting it,
    the driver still notes it. Raises the errors of `stream_submission`, with nothing noted.
    """
    id_ = id_ or uuid.uuid4().hex
    # Before the intent: a driver that cannot be submitted would look like one that starts.
    resolved = stream_submission(load_pipeline(pipeline), mode="cluster")
    launches.note_intent(id_, pipeline, launches.YARN, "")
    resolved.env["TIDEMARK_LAUNCH"] = id_
    application = submit(resolved)
    launches.note_application(id_, application, yarn.page_of(yarn.resource_manager(), application))
    noted = launches.find(id_)
    assert noted is not None
    return noted


def end_of(launched: Launch) -> dict[str, Any] | None:
    """Return how a driver ended that noted no end and holds no lease; None while it may still take one.

    Raises ServiceUnreachable while YARN does not answer.
    """
    age = restarts.age_of(launched.id)
    if not launched.application:
        return {"event": "died"} if age > restarts.STARTING else None
    application = yarn.find(yarn.resource_manager(), launched.application)
    if application is None or application.has_ended:
        code = application.own_exit_code if application is not None else None
        return {"event": "died"} if code is None else {"event": "finished", "exit_code": code}
    # An application for which the cluster has no room waits as long as it takes.
    if application.launched_at is not None:
        age = datetime.now(UTC) - application.launched_at
    return None if application.is_waiting or age <= restarts.STARTING else {"event": "died"}


def is_alive(launched: Launch) -> bool:
    """Return whether YARN still has it waiting or running. Raises ServiceUnreachable."""
    if not launched.application:
        return False
    application = yarn.find(yarn.resource_manager(), launched.application)
    return application is not None and not application.has_ended


def is_waiting(launched: Launch) -> bool:
    """Return whether the cluster has no room for it yet, or Spark has not started in it: then it has nothing to finish.

    False while YARN is down.
    """
    with suppress(ServiceUnreachable):
        application = yarn.find(yarn.resource_manager(), launched.application) if launched.application else None
        return application is not None and application.is_waiting
    return False


def kill(launched: Launch) -> None:
    """Have YARN end it, whatever it does. Raises ServiceUnreachable."""
    if launched.application:
        yarn.kill(yarn.resource_manager(), launched.application)


def tail(launched: Launch, lines: int) -> list[str]:
    """Return the last lines of its driver's own output, with its secrets; none if its node does not answer."""
    with suppress(ServiceUnreachable):
        application = yarn.find(yarn.resource_manager(), launched.application)
        if application is not None:
            own = DriverLines()
            said = [line for line in yarn.read_log(application).lines if own.passes(line)]
            return said[-lines:]
    return []


def unreadable_log(launched: Launch) -> str:
    """Return why its driver's log cannot be read now; empty where it can, or where YARN does not tell."""
    with suppress(ServiceUnreachable):
        application = yarn.find(yarn.resource_manager(), launched.application)
        return yarn.read_log(application, last=1).unreadable if application is not None else ""
    return ""


@dataclass
class ApplicationLog:
    """A live driver's log on its node, followed from its end."""

    launched: Launch
    _at: int = -1
    _unreadable: str = ""

    def new_lines(self) -> list[str]:
        """Return the new whole lines, at most a few; the rest is counted in the first. Raises ServiceUnreachable."""
        application = yarn.find(yarn.resource_manager(), self.launched.application)
        if application is None:
            return []
        log = yarn.read_log(application)
        before, self._unreadable = self._unreadable, log.unreadable
        if log.unreadable:
            return [] if before else [f"the log cannot be read: {log.unreadable}"]
        is_first = self._at < 0
        new, self._at = whole_new_lines(log.content, log.begin, self._at)
        # The first look begins at the end, as for a driver that ran before.
        return newest_lines(b"" if is_first else new, self.launched.log)
