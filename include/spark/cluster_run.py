"""Runs a Spark application on the cluster for the command line: hands it over, shows its log, returns its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType

from include.errors import ServiceUnreachable, TidemarkError
from include.spark import yarn
from include.spark.driver_lines import DriverLines
from include.spark.submission import SparkSubmission

_LOOK_AGAIN = 1.0
"""Seconds between two looks at an application and its log."""

_PATIENCE = 120.0
"""How long the resource manager may be away, s."""


def hand_over(job: SparkSubmission) -> str:
    """Hand an application over to YARN and return its id. Raise TidemarkError when YARN did not take it."""
    done = subprocess.run(
        job.command(),
        env={**os.environ, **job.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        # Ctrl-C reaches this process alone.
        start_new_session=True,
    )
    return yarn.submitted_id(done.stdout)


class _Followed:
    """An application that is looked at until its end; its driver's lines go to standard error."""

    def __init__(self, job: SparkSubmission, lines: DriverLines) -> None:
        self.manager = yarn.resource_manager()
        self.id = hand_over(job)
        self._lines = lines
        self._shown = 0
        self._answered = time.monotonic()

    def look(self) -> yarn.Application | None:
        """Show what is new of the log and return the application; None while YARN does not answer."""
        try:
            found = yarn.find(self.manager, self.id)
        except ServiceUnreachable:
            if time.monotonic() - self._answered > _PATIENCE:
                raise
            return None
        if found is None:
            raise TidemarkError(
                f"YARN does not know {self.id} any more: its resource manager started anew",
                remedy="start again; a stream that still runs says so",
            )
        self._answered = time.monotonic()
        self._show(yarn.read_log(found))
        return found

    def _show(self, log: yarn.LogEnd) -> None:
        # What has no line end yet is shown when it has one.
        whole = log.content[: log.content.rfind(b"\n") + 1]
        if log.begin > self._shown:
            print(f"tidemark: {log.begin - self._shown} bytes of the driver's log are not shown here", file=sys.stderr)
        for line in whole[max(0, self._shown - log.begin) :].decode(errors="replace").splitlines(keepends=True):
            if self._lines.passes(line):
                sys.stderr.write(line)
        sys.stderr.flush()
        self._shown = max(self._shown, log.begin + len(whole))

    def code(self, ended: yarn.Application) -> int:
        """Return the exit code of an application that ended; of one that told none, say how it ended."""
        code = ended.own_exit_code
        if code is None:
            print(f"tidemark: {ended.end}", file=sys.stderr)
            return TidemarkError.exit_code
        if code == TidemarkError.exit_code:
            print(*yarn.read_log(ended, "stderr", last=4096).lines, sep="\n", file=sys.stderr)
        for line in self._lines.reasons(code):
            print(line, file=sys.stderr)
        return code


def run_on_cluster(job: SparkSubmission) -> int:
    """Run an application to its end and return its exit code; an interrupt kills it."""
    followed = _Followed(job, DriverLines())
    try:
        while (found := followed.look()) is None or not found.has_ended:
            time.sleep(_LOOK_AGAIN)
    except KeyboardInterrupt:
        yarn.kill(followed.manager, followed.id)
        raise
    return followed.code(found)


def run_stream_on_cluster(job: SparkSubmission, ask_to_stop: Callable[[], bool]) -> int:
    """Run a stream and return its exit code; SIGTERM and SIGINT ask its driver to stop after its micro-batch.

    `ask_to_stop` is false while there is no driver yet.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    followed, asked = _Followed(job, DriverLines(shows_warnings=True)), False
    while (found := followed.look()) is None or not found.has_ended:
        if signals and not asked and found is not None:
            # One that waits for room on the cluster has nothing to finish.
            if found.is_waiting:
                yarn.kill(followed.manager, followed.id)
                return 0
            asked = ask_to_stop()
        time.sleep(_LOOK_AGAIN)
    return followed.code(found)
