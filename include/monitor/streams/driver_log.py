"""The end of a driver's log, fit for a page: no secret of the settings, no control character, no endless line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from include.errors import ServiceUnreachable
from include.ledger.streams.launches import Launch
from include.monitor.text import clean
from include.settings import read_properties, settings
from include.spark.driver_lines import end_of_log

LINES = 200
"""How many lines are shown."""

_LINE = 400
_LEAST_SECRET = 6
"""Least characters of a value that is masked: a shorter one would mask half of every line."""

_MASK = "********"
_SECRET_NAMES = re.compile(r"passw|secret|token|credential|jaas|api.?key|access.?key|private", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"""(?i)((?:[\w.-]*(?:passw(?:or)?d|secret|token|credentials?|api[._-]?key|access[._-]?key)[\w.-]*)["']?\s*[=:]\s*)"""
    r"""("[^"]*"|'[^']*'|[^\s,;&})\]]+)"""
)
_IN_URL = re.compile(r"(\w+://[^\s:/@]*:)[^\s/@]+(@)")
_QUOTED = re.compile(r'"([^"]+)"')


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
    secrets = frozenset(secret_values())
    try:
        text = end_of_log(launch.log)
    except OSError as error:
        ended = clean(without_secrets(launch.error, secrets), _LINE)
        note = f"It cannot be read on this host: {error.strerror}."
        return DriverLog(launch.log_place, (), f"{note} The driver ended with: {ended}" if ended else note)
    # A secret may hold a line's end: the whole is masked before it is cut into lines.
    lines = without_secrets(text, secrets).splitlines()[-LINES:]
    return DriverLog(launch.log, tuple(clean(line, _LINE) for line in lines), "" if lines else "It is empty.")


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with these values masked, and whatever is written after a name like `password`."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return _IN_URL.sub(rf"\1{_MASK}\2", _ASSIGNED.sub(rf"\1{_MASK}", text))


def secret_values() -> Iterator[str]:
    """Yield the secrets that this process's settings and environment hold."""
    current = settings()
    urls = [current.database_url, current.registry_url]
    secrets: list[str] = []
    with suppress(ServiceUnreachable):
        # Raised if neither an embedded nor another PostgreSQL is known.
        secrets.append(str(current.database("ledger").password or ""))
    for url in urls:
        if url is not None and (match := re.search(r"://[^/@]*:([^/@]+)@", url.get_secret_value())):
            secrets.append(match[1])
    files = {"TIDEMARK_KAFKA_PROPERTIES": current.kafka_properties, "TIDEMARK_JDBC_PROPERTIES": current.jdbc_properties}
    options = [each for variable, path in files.items() for each in read_properties(path, variable).items()]
    for name, value in options:
        if _SECRET_NAMES.search(name):
            secrets += [value, *_QUOTED.findall(value)]
    secrets += [value for name, value in os.environ.items() if _SECRET_NAMES.search(name)]
    # Values that occur in any log are not secrets: a path, or a flag.
    return (each for each in secrets if len(each) >= _LEAST_SECRET and not each.startswith("/"))
