"""In place of `spark-submit`: run one application in the kept JVM, or as without it where another one is using that.

    spark-submit --master MASTER --name NAME --conf KEY=VALUE … APPLICATION ARGUMENTS…

This process holds the JVM, passes on what the JVM logs meanwhile, and ends with its driver's exit code. The driver is
forked from a process that has imported what drivers import (`forks.py`), and ends with this one, as it would end with
a JVM of its own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_KILLED = 128
"""Exit codes from here on are of a driver that a signal has ended."""

_TIDY = {0, 2, 64}
"""Exit codes of drivers that have left nothing behind: success, a failed validation, wrong usage."""

_LOOK_AGAIN = 0.2
"""Seconds between two looks at what the JVM has logged, or at who has it."""

_KEEPER_NEEDS = 10.0
"""Seconds for which the keeper may have the JVM between two applications."""


def main(arguments: list[str]) -> int:
    """Return the driver's exit code."""
    from include.spark.kept import GATEWAY, as_note

    try:
        conf, application = parse_submission(arguments)
    except ValueError:
        held = None
    else:
        held = _take(Path(os.environ.get(GATEWAY, "")))
    if held is None:
        _have_a_jvm_of_its_own(arguments)
    file, found = held
    told = {**found, "served": found["served"] + 1}
    os.pwrite(file, as_note({**told, "by": os.getpid()}).encode(), 0)
    with Path(told["log"]).open("rb") as log:
        log.seek(0, os.SEEK_END)
        try:
            code = _drive(told, conf, application, log.fileno(), file)
        except OSError:
            # Nothing has begun: what makes drivers has ended, or the environment is too large for it.
            os.pwrite(file, as_note(found).encode(), 0)
            _have_a_jvm_of_its_own(arguments)
    if code in _TIDY:
        # Otherwise its tasks may still run, or it is out of memory: nobody uses the JVM any more, and the keeper
        # replaces it.
        os.pwrite(file, as_note(told).encode(), 0)
    return code


def _have_a_jvm_of_its_own(arguments: list[str]) -> NoReturn:
    own = str(Path(sys.executable).parent / "spark-submit")
    os.execv(own, [own, *arguments])


def _take(path: Path) -> tuple[int, dict[str, Any]] | None:
    """Lock the JVM and return the file's descriptor, held until this process and its driver have ended, and what the
    file says; None where another application has it, or there is no such JVM any more.
    """
    from include.spark.kept import read_note

    until = time.monotonic() + _KEEPER_NEEDS
    with suppress(OSError, ValueError):
        file = os.open(path, os.O_RDWR)
        while True:
            told = read_note(file)
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if told["by"] or time.monotonic() > until:
                return None
            # The keeper has it, which makes it tidy.
            time.sleep(_LOOK_AGAIN)
        told = read_note(file)
        # The keeper puts another file there for another JVM.
        is_there = path.stat().st_ino == os.fstat(file).st_ino
        with socket.create_connection(("127.0.0.1", told["port"]), timeout=5):
            return (file, told) if is_there and not told["by"] else None
    return None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse_submission(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the configuration that `spark-submit`'s options make, and the application with its arguments.

    Raises ValueError for options that Tidemark does not give; Airflow's connection may.
    """
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--master", required=True)
    # Given by Airflow's Spark provider.
    parser.add_argument("--deploy-mode")
    parser.add_argument("--name", required=True)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("application", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    conf = dict(pair.split("=", 1) for pair in given.conf)
    return {"spark.master": given.master, "spark.app.name": given.name, **conf}, given.application


def _drive(told: dict[str, Any], conf: dict[str, str], application: list[str], log: int, lock: int) -> int:
    """Have the application run, and return its exit code, beyond 128 for a signal."""
    from spark_jobs.kept import forks

    gateway = {"PYSPARK_GATEWAY_PORT": str(told["port"]), "PYSPARK_GATEWAY_SECRET": told["secret"]}
    driver = [str(Path(__file__).with_name("driver.py")), json.dumps(conf), *application]

    def begun(process: int) -> None:
        def forward(number: int, frame: FrameType | None) -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, forward)

    with _passed_on(log):
        # The lock is the driver's, too: nobody else has the JVM while it lives.
        code = forks.ask(told["forks"], driver, {**os.environ, **gateway}, Path.cwd(), (1, 2, lock), begun=begun)
    return code if code >= 0 else _KILLED - code


@contextmanager
def _passed_on(log: int) -> Iterator[None]:
    """Write what is appended to the JVM's log in this block."""
    ended = threading.Event()

    def pass_on() -> None:
        left = b""
        while True:
            is_last = ended.wait(_LOOK_AGAIN)
            while written := os.read(log, 1 << 16):
                left += written
            whole, _, left = left.rpartition(b"\n")
            if whole:
                os.write(2, whole + b"\n")
            if is_last:
                return

    following = threading.Thread(target=pass_on)
    following.start()
    try:
        yield
    finally:
        ended.set()
        following.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
