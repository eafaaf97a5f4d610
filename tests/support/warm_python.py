"""A Python process that has imported the libraries, and makes each process that a test run's commands need by a fork.

As `up spark` does it for drivers (`spark_jobs/kept/forks.py`), here for commands, too, which import for a second.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from spark_jobs.kept import forks
from spark_jobs.kept.keeper import LIBRARIES

_OF_COMMANDS = ("httpx_sse", "pyspark.testing", "rich.console", "rich.live", "typer")
"""What commands and tests' drivers import besides."""


class WarmPython:
    """The process, from its first use until `end`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forks: forks.Forks | None = None

    def stand_in(self, file: str) -> list[str]:
        """Return a command that runs `python FILE ARGUMENTS…` in the process, with the arguments of `python FILE`."""
        # Without what it does not need: it starts in a fiftieth of the time.
        return [sys.executable, "-S", "-I", forks.__file__, "ask", str(self._address()), file]

    def _address(self) -> Path:
        address = self._folder / "python"
        if self._forks is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "python.log").open("ab") as log:
                self._forks = forks.Forks(address, (*LIBRARIES, *_OF_COMMANDS), log)
            self._forks.await_ready()
        return address

    def run(self, arguments: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS…`, as `subprocess.run` would with a time limit of ten minutes."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            code = forks.ask(self._address(), arguments, environment, cwd, (out.fileno(), err.fileno()), 600)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def end(self) -> None:
        """End the process, and whatever it made that still runs."""
        if self._forks is not None:
            self._forks.end()
