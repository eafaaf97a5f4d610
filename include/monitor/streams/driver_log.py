"""The end of a driver's log, fit for a page: no secret of the settings, no control character, no endless line."""

from __future__ import annotations

from dataclasses import dataclass

from include.errors import UsageError
from include.ledger.streams.launches import Launch
from include.monitor.text import clean
from include.spark.driver_lines import end_of_log, secret_values, without_secrets

LINES = 200
"""How many lines are shown."""

_LINE = 400


@dataclass(frozen=True)
class DriverLog:
    """The end of the log of a pipeline's last driver."""

    path: str
    lines: tuple[str, ...]
    note: str
    """Why there are none; empty otherwise."""


def driver_log(launch: Launch | None) -> DriverLog:
    """Return the last lines of a launch's log as they can be shown."""
    if launch is None:
        return DriverLog("", (), "Airflow has started no driver yet; one that runs by hand writes to its terminal.")
    try:
        secrets = frozenset(secret_values())
    except UsageError as error:
        what = "The log" if launch.was_submitted else "The newest driver could not be submitted. Its error"
        return DriverLog(launch.log_place, (), f"{what} is not shown: {clean(str(error), _LINE)}")
    if not launch.was_submitted:
        why = clean(without_secrets(launch.error, secrets), _LINE)
        return DriverLog("", (), f"The newest driver could not be submitted: {why}")
    try:
        text = end_of_log(launch.log)
    except OSError as error:
        ended = clean(without_secrets(launch.error, secrets), _LINE)
        note = f"It cannot be read on this host: {error.strerror}."
        return DriverLog(launch.log_place, (), f"{note} The driver ended with: {ended}" if ended else note)
    # A secret may hold a line's end: the whole is masked before it is cut into lines.
    lines = without_secrets(text, secrets).splitlines()[-LINES:]
    return DriverLog(launch.log, tuple(clean(line, _LINE) for line in lines), "" if lines else "It is empty.")
