"""In place of `spark-submit`: run one application in the kept JVM, or as without it where another one is using that.

    spark-submit --master MASTER --name NAME --conf KEY=VALUE … APPLICATION ARGUMENTS…

This process holds the JVM, passes on what the JVM logs meanwhile, and ends with its driver's exit code; the driver is
its child, as it is the JVM's child otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1

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
        own = str(Path(sys.executable).parent / "spark-submit")
        os.execv(own, [own, *arguments])
    file, told = held
    told = {**told, "served": told["served"] + 1}
    os.pwrite(file, as_note({**told, "by": os.getpid()}).encode(), 0)
    with Path(told["log"]).open("rb") as log:
        log.seek(0, os.SEEK_END)
        holder, driver = os.getpid(), os.fork()
        if not driver:
            # A driver that outlived this process would have its Spark context, and nobody to tell how it ended.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != holder:
                os._exit(_KILLED)
            _become_driver(told, conf, application)
        code = _follow(driver, log.fileno())
    if code in _TIDY:
        # Otherwise its tasks may still run, or it is out of memory: nobody uses the JVM any more, and the keeper
        # replaces it.
        os.pwrite(file, as_note(told).encode(), 0)
    return code


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


def _become_driver(told: dict[str, Any], conf: dict[str, str], application: list[str]) -> NoReturn:
    import runpy

    from spark_jobs.kept.context import prepare

    os.environ.update(PYSPARK_GATEWAY_PORT=str(told["port"]), PYSPARK_GATEWAY_SECRET=told["secret"])
    prepare(conf)
    sys.argv = application
    sys.path[0] = str(Path(application[0]).parent)
    runpy.run_path(application[0], run_name="__main__")
    sys.exit()


def _follow(driver: int, log: int) -> int:
    """Write what is appended to the JVM's log until the driver ends; return its exit code, beyond 128 for a signal."""
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

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(driver, received))
    following = threading.Thread(target=pass_on)
    following.start()
    code = os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1])
    ended.set()
    following.join()
    return code if code >= 0 else _KILLED - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
