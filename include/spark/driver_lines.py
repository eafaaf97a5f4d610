"""Separates an application's own lines from the warnings of the JVM, of Hive and of `spark-submit`.

Spark's own warnings are held back, but for the first that the cluster has no free core, and shown when the application
fails and its exit code says nothing: then they may be the reason. `secret_values` is what no line shows, in a log or on
a page.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from include.errors import ServiceUnreachable, TidemarkError, UsageError, error_class, one_line
from include.settings import Settings, read_properties, settings

HELD = 30
"""How many of the lines held back are kept for a failure."""

END = 128 * 1024
"""How many bytes are read from the end of a log: one of a stream grows as long as it runs."""

SHOWN = 5
"""How many lines of a live driver's log are shown per look."""

OWN = "tidemark: "
"""How the lines of Tidemark's own code begin; in a launched driver's log, their time follows."""

_NOISE = re.compile(
    r"WARNING: |Warning: |OpenJDK .*warning: |Java HotSpot.*warning: |SLF4J|:: |Ivy |Using Spark's default log4j|"
    r"Setting default log level|To adjust logging level|Spark-Submit cmd: |(\[\d+\.\d+s\])?\[warning\]\["
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
_LOGGED = re.compile(rf"({_TIME.pattern}|\d\d[:/]\d\d[:/]\d\d (\d\d:\d\d:\d\d )?)(TRACE|DEBUG|INFO|WARN) ")
_NO_ROOM = "TaskSchedulerImpl: Initial job has not accepted any resources"
_CONTINUED = re.compile(r"\s+at \S|\s*\.\.\. \d+ more|Caused by: ")

_BEGINNINGS = re.compile(rf"^({OWN})", re.MULTILINE)
_SECRET_NAMES = re.compile(r"passw|secret|token|credential|jaas|api.?key|access.?key|private", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"')
_PASSWORD = re.compile(r"://[^:/@]*:([^\s?]+)@")
_MASK = "********"
# Each pattern begins only where a word does, and nothing that it has read is tried again shorter: a word may be as long
# as the log, and reading it from each of its characters would take minutes.
_ASSIGNED = re.compile(
    r"""(?i)((?<![\w.-])(?=[\w.-]*(?:passw(?:or)?d|secret|token|credentials?|api[._-]?key|access[._-]?key))"""
    r"""[\w.-]++["']?\s*+[=:]\s*+)("[^"]*"|'[^']*'|[^\s,;&})\]]+)"""
)
_IN_URL = re.compile(r"((?<!\w)\w++://[^\s:/@]*+:)[^\s/@]++(@)")
_LEAST_SECRET = 6
"""Least characters of a value that only may be a secret: a shorter one, such as a flag, would mask half of every line.
"""


def end_of_log(path: str | Path) -> str:
    """Return the end of a driver's log in whole lines. Raises OSError."""
    with Path(path).open("rb") as log:
        begin = log.seek(max(0, log.seek(0, os.SEEK_END) - END))
        end = log.read(END)
    return (without_first_line(end) if begin else end).decode(errors="replace")


def without_first_line(end: bytes) -> bytes:
    """Return a log's end without its first line, which lacks its beginning: a secret that is cut cannot be masked."""
    rest = end[end.find(b"\n") + 1 :] if b"\n" in end else b""
    return rest or f"… the end of a line of more than {len(end)} bytes is not shown".encode()


def whole_new_lines(content: bytes, begin: int, shown: int) -> tuple[bytes, int]:
    """Return the whole lines of a log from `shown` on, and where the next ones begin.

    `content` is the log's end, from `begin` on. If that is after `shown`, its first line lacks its beginning and is
    left out, as by `without_first_line`.
    """
    length = content.rfind(b"\n") + 1
    if not length:
        # An unfinished line is returned once it is complete.
        return b"", shown
    first = shown - begin if shown >= begin else content.find(b"\n") + 1
    return content[first:length], begin + length


def pipeline_of(arguments: Sequence[str]) -> str:
    """Return the pipeline that a driver's arguments name; empty where they name none."""
    return next((name for option, name in pairwise(arguments) if option == "--pipeline"), "")


def first_error(output: str, otherwise: str) -> str:
    """Return the first line of what `spark-submit` printed that names an error; `otherwise` where none does."""
    lines = (line.strip() for line in output.splitlines() if "xception" in line or "rror" in line)
    return next(lines, otherwise)[:300]


def newest_lines(written: bytes, place: str) -> list[str]:
    """Return the last lines of what a log at `place` has got, at most a few; the first counts the others.

    They go into Airflow's log: without secrets of the settings and control characters.
    """
    text = written.decode(errors="replace")
    try:
        text = without_secrets(text, frozenset(secret_values()))
    except UsageError as error:
        return [f"the log is not shown: {one_line(str(error))}"] if text.strip() else []
    lines = [line for line in text.splitlines() if line.strip()]
    left_out = len(lines) - SHOWN
    shown = [one_line(line) for line in lines[-SHOWN:]]
    return [f"… {left_out} lines before are in {place}", *shown] if left_out > 0 else shown


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with these values masked, and whatever is written after a name like `password`.

    How Tidemark's own lines begin stays, though a secret may read like it: an exit code counts only after such lines.
    """
    longest_first = sorted(secrets, key=len, reverse=True)
    return "".join(part if part == OWN else _masked(part, longest_first) for part in _BEGINNINGS.split(text))


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _MASK)
    return _IN_URL.sub(rf"\1{_MASK}\2", _ASSIGNED.sub(rf"\1{_MASK}", text))


def secret_values() -> Iterator[str]:
    """Yield the secrets of this process's settings, of the files that they name, and of its environment.

    Raises UsageError, after what the others hold, when a setting is wrong or one of the files cannot be read.
    """
    yield from (value for name, value in os.environ.items() if _SECRET_NAMES.search(name) and _is_telling(value))
    refused: list[UsageError] = []
    for secrets in (_of_settings, _of_kafka_s_options, _of_connections):
        try:
            yield from filter(None, secrets())
        except UsageError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _of_settings() -> Iterator[str]:
    """Yield the secret addresses, and the passwords in them, as they are written there and as they are sent."""
    current = settings()
    for name, each in Settings.declared().items():
        if each.metadata["secret"] and (address := getattr(current, name)):
            yield address.get_secret_value()
            yield from _PASSWORD.findall(address.get_secret_value())
    # Raised if neither an embedded service nor another one is known.
    with suppress(ServiceUnreachable):
        yield str(current.database("ledger").password or "")
    with suppress(ServiceUnreachable):
        yield str(current.registry().password or "")


def _of_kafka_s_options() -> Iterator[str]:
    for name, value in read_properties(settings().kafka_properties).items():
        if _SECRET_NAMES.search(name):
            yield value
            # A JAAS line quotes user and password.
            for quoted in filter(_is_telling, _QUOTED.findall(value)):
                yield from (quoted, re.sub(r"\\(.)", r"\1", quoted))


def _of_connections() -> Iterator[str]:
    for name, value in read_properties(settings().jdbc_properties, "TIDEMARK_JDBC_PROPERTIES").items():
        # A URL may hold a password, too.
        if _SECRET_NAMES.search(name) or ".url" in name:
            yield value


def _is_telling(value: str) -> bool:
    """Return whether a value can be a secret; paths and flags, which any log may have, are none."""
    return len(value) >= _LEAST_SECRET and not value.startswith("/")


@dataclass
class DriverLines:
    """Lines of one application, in the order in which it prints them."""

    shows_warnings: bool = False
    """Whether Spark's warnings are shown at once: a stream waits for other services, and its warnings name them."""
    held: deque[str] = field(default_factory=lambda: deque(maxlen=HELD))
    """The last lines that were held back."""
    _is_held: bool = False
    _has_waited: bool = False
    """Whether Spark has said that the cluster has no free core for the application."""
    _last: str = ""
    """The last line that was shown."""
    own: str = ""
    """The last line that Tidemark's code printed, without prefix and time: the error, if the driver could name one."""

    def note(self, line: str) -> None:
        """Keep a line as `own` if Tidemark's code printed it."""
        if line.startswith(OWN):
            said = line.removeprefix(OWN)
            # Only of a launched driver a time leads; others are in the text, as those of an interval.
            led = _TIME.match(said)
            self.own = said[led.end() if led else 0 :].strip()

    def passes(self, line: str) -> bool:
        """Return whether a line is shown at once; others are kept in `held`. TIDEMARK_DEBUG shows all."""
        self.note(line)
        if os.environ.get("TIDEMARK_DEBUG") == "1" or not line.strip():
            return bool(line.strip())
        # Nothing else tells that an application waits; Spark repeats it every 15 s.
        is_first = not self._has_waited and _NO_ROOM in line
        self._has_waited = self._has_waited or is_first
        self._is_held = (self._is_foreign(line) and not is_first) or (
            self._is_held and _CONTINUED.match(line) is not None
        )
        if self._is_held:
            self.held.append(line.rstrip())
        else:
            self._last = line.rstrip()
        return not self._is_held

    def exit_code(self, code: int) -> int:
        """Return an exit code as the contract has it: 1 if it is unknown there, or the driver printed no line before.

        Python ends with 2 when it cannot open a script, which would mean that a validation failed. One from 128 on,
        of a driver that was killed, is returned unchanged.
        """
        if not 0 < code < 128:
            return code
        return error_class(code).exit_code if self.own else TidemarkError.exit_code

    def reasons(self, code: int) -> Sequence[str]:
        """Return the lines held back of an application whose exit code says nothing, and its own last line again.

        That line names the error if the driver could name one, so it also comes last.
        """
        if error_class(code) is not TidemarkError:
            return ()
        return (*self.held, *([self._last] if self.held and self._last.startswith(OWN) else ()))

    def _is_foreign(self, line: str) -> bool:
        start = line.lstrip()
        return bool(_NOISE.match(start) or (not self.shows_warnings and _LOGGED.match(start)))
