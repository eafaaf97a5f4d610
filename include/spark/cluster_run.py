"""Run a Spark application on the cluster and wait: hand it over, print its log, return its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from include.errors import ServiceUnreachable, TidemarkError
from include.settings import settings
from include.spark import kubernetes, yarn
from include.spark.driver_lines import DriverLines
from include.spark.jars import SHORT_LIVED
from include.spark.submission import SparkSubmission

_LOOK_AGAIN = 1.0
"""Seconds between two looks at an application and its log."""

_PATIENCE = 120.0
"""Seconds for which the cluster may fail to answer."""


class Application(Protocol):
    """An application on a cluster."""

    @property
    def has_ended(self) -> bool:
        """Whether no part of it runs any more."""

    @property
    def is_waiting(self) -> bool:
        """Whether the cluster has no room for its driver yet."""

    @property
    def waits_for(self) -> str:
        """What it waits for, as far as the cluster reports it."""

    @property
    def own_exit_code(self) -> int | None:
        """The driver's exit code, if it ended by itself."""

    @property
    def end(self) -> str:
        """How it ended, in a line."""


Found = TypeVar("Found", bound=Application)


class Cluster(Protocol[Found]):
    """What takes applications: YARN or Kubernetes."""

    forgets: str

    def submitted_id(self, output: str) -> str:
        """Return the id that `spark-submit` printed."""

    def find(self, application: str) -> Found | None:
        """Return an application; None for one that is not known (any more)."""

    def kill(self, application: str) -> None:
        """End an application."""

    def new_lines(self, application: Found) -> list[str]:
        """Return the driver's lines since the last call."""

    def last_lines(self, application: Found) -> list[str]:
        """Return the end of its log."""


def hand_over(job: SparkSubmission) -> str:
    """Hand an application over to the cluster and return what `spark-submit` printed."""
    done = subprocess.run(
        job.command(),
        # For the JVM that hands over, where the operator has no options for it; the driver's are its own.
        env={"SPARK_SUBMIT_OPTS": " ".join(SHORT_LIVED), **os.environ, **job.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        # Ctrl-C reaches this process alone.
        start_new_session=True,
    )
    return done.stdout


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Followed(Generic[Found]):
    """Watches an application until its end, and prints its driver's own lines as they come."""

    def __init__(
        self,
        cluster: Cluster[Found],
        application: str,
        lines: DriverLines,
        say: Callable[[str], None] = _to_standard_error,
    ) -> None:
        self.cluster = cluster
        self.id = application
        self._lines = lines
        self._say = say
        self._waits_for = ""
        self._answered = time.monotonic()

    def look(self) -> Found | None:
        """Print the log's new lines and return the application; None while the cluster does not answer."""
        try:
            application = self.cluster.find(self.id)
        except ServiceUnreachable:
            if time.monotonic() - self._answered > _PATIENCE:
                raise
            return None
        if application is None:
            raise TidemarkError(
                f"the cluster does not know {self.id} any more: {self.cluster.forgets}",
                remedy="start again; a stream that still runs says so",
            )
        self._answered = time.monotonic()
        if application.waits_for not in ("", self._waits_for):
            self._waits_for = application.waits_for
            self._say(f"tidemark: {self.id} waits: {self._waits_for}")
        for line in self.cluster.new_lines(application):
            if self._lines.passes(line):
                self._say(line)
        return application

    def end(self) -> int:
        """Wait for the application's end and return its exit code."""
        while (application := self.look()) is None or not application.has_ended:
            time.sleep(_LOOK_AGAIN)
        return self.code(application)

    def kill(self) -> None:
        """End the application."""
        self.cluster.kill(self.id)

    def code(self, ended: Found) -> int:
        """Return the exit code of an application that ended; print how it ended when it reported no known code."""
        code = ended.own_exit_code
        if code is None:
            self._say(f"tidemark: {ended.end}")
            return TidemarkError.exit_code
        last = self.cluster.last_lines(ended) if code else []
        for line in last:
            self._lines.note(line)
        # A node that does not answer shows nothing of what the driver said.
        if last or self._lines.own:
            code = self._lines.exit_code(code)
        if code == TidemarkError.exit_code:
            for line in last:
                self._say(line)
        for line in self._lines.reasons(code):
            self._say(line)
        return code


def _follow(job: SparkSubmission, lines: DriverLines) -> Followed[Any]:
    master = settings().spark_master
    cluster: Cluster[Any]
    if kubernetes.is_master(master):
        cluster = kubernetes.Kubernetes(master)
    else:
        cluster = on_yarn = yarn.Yarn()
        on_yarn.check_answers()
    application = cluster.submitted_id(hand_over(job))
    _to_standard_error(f"tidemark: handed over to the cluster: {application}")
    return Followed(cluster, application, lines)


def run_on_cluster(job: SparkSubmission) -> int:
    """Run an application to its end and return its exit code; an interrupt kills it."""
    followed = _follow(job, DriverLines())
    try:
        return followed.end()
    except KeyboardInterrupt:
        followed.kill()
        raise


def run_stream_on_cluster(job: SparkSubmission, ask_to_stop: Callable[[], bool], is_asked: Callable[[], bool]) -> int:
    """Run a stream and return its exit code; once `is_asked`, its driver stops after its micro-batch.

    `ask_to_stop` returns False while there is no driver yet.
    """
    followed, asked = _follow(job, DriverLines(shows_warnings=True)), False
    while (application := followed.look()) is None or not application.has_ended:
        if is_asked() and not asked and application is not None:
            # An application that waits for room on the cluster has nothing to finish.
            if application.is_waiting:
                followed.kill()
                return 0
            asked = ask_to_stop()
        time.sleep(_LOOK_AGAIN)
    return followed.code(application)
