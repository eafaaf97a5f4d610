"""Logs of drivers: followed while one lives, and their last lines when it failed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from include.airflow.on_cluster import applications
from include.errors import UsageError, one_line
from include.ledger.streams import launches
from include.spark.driver_lines import end_of_log, newest_lines, secret_values, whole_new_lines, without_secrets

TAIL = 15
"""How many lines of a driver's log are shown when it failed."""

_LINE = 2_000
"""How many characters of a failed driver's line are shown."""

_READ = 16_384
"""How many bytes of a live driver's log are read per look."""


def tail(launch: launches.Launch | None) -> list[str]:
    """Return the last lines of a driver's log; where this host cannot read it, the error with which it ended.

    They go into Airflow's log, an error and an alert: without secrets of the settings and control characters.
    """
    if launch is None:
        return []
    if launch.is_on_yarn:
        text = "\n".join(applications.tail(launch, TAIL))
    else:
        try:
            text = end_of_log(launch.log)
        except OSError:
            text = launch.error
    try:
        secrets = frozenset(secret_values())
    except UsageError as error:
        return [f"The log is not shown: {one_line(str(error), _LINE)}"]
    # A secret may hold a line's end: the whole is masked before it is cut into lines.
    lines = without_secrets(text, secrets).splitlines()
    return [one_line(line, _LINE) for line in lines if line.strip()][-TAIL:]


def unreadable_log(launch: launches.Launch | None) -> str:
    """Return why a driver's log cannot be read on its node; empty where it can, or where it is a file."""
    return applications.unreadable_log(launch) if launch is not None and launch.is_on_yarn else ""


@dataclass
class FollowedLog:
    """A live driver's log, followed from its end: the last lines of what was written since the last look."""

    path: str
    """Empty if nobody noted it: for a driver that a person started."""
    _at: int = 0

    def new_lines(self) -> list[str]:
        """Return the new lines that are shown, printable, at most a few; the rest is counted in the first.

        Empty if the file cannot be read on this host.
        """
        try:
            with Path(self.path).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                # A log that became shorter was replaced.
                shown = self._at if self._at <= size else 0
                begin = file.seek(max(shown, size - _READ))
                read = file.read()
        except OSError:
            return []
        new, self._at = whole_new_lines(read, begin, shown)
        return newest_lines(new, self.path)


def log_of(launch: str) -> FollowedLog | applications.ApplicationLog:
    """Return the log of a launch; for a driver that a person started, one without lines."""
    noted = launches.find(launch) if launch else None
    if noted is not None and noted.is_on_yarn:
        return applications.ApplicationLog(noted)
    return FollowedLog(noted.log if noted else "")
