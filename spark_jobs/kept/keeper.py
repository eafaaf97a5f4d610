"""The service `spark`: starts the JVM, and again when it has ended or has served its time.

`python -m spark_jobs.kept.keeper` runs until it is stopped. A driver that is killed takes its JVM along, as it does
without this service: its tasks would go on, and nobody could end them for certain.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn

from py4j.protocol import Py4JError

from include.settings import settings, write_private
from include.spark import driver_folders
from include.spark.kept import as_note, gateway_file, read_note
from include.spark.kept.start import submit_arguments
from spark_jobs.kept.forks import Forks

MOST_SERVED = 100
"""Applications after which a JVM is replaced: whatever one leaves in it, a month of them would add up."""

LIBRARIES = (
    "alembic.command", "confluent_kafka.admin", "fastavro", "fasteners", "great_expectations",
    "great_expectations.expectations", "httpx", "jinja2", "pandas", "psutil", "psycopg2.extras", "py4j.java_gateway",
    "pyarrow.dataset", "pyarrow.parquet", "pyspark.sql.avro.functions", "pyspark.sql.functions",
    "pyspark.sql.streaming", "sqlalchemy.dialects.postgresql", "sqlalchemy.orm", "tenacity",
)  # fmt: skip
"""What drivers import."""

_LOOK_AGAIN = 1.0
_LAST_WORDS = 20.0
"""Seconds for which a driver whose JVM has ended may go on."""

_SHORT_LIFE = 60.0
"""Seconds; a JVM that lives shorter, without having served anything, would not live longer the next time."""


class Keeper:
    """A JVM after the other, each with what forks its drivers, and the file by which applications find them."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = gateway_file(settings())
        self._temporary = Path(os.environ[driver_folders.VARIABLE])
        self._socket = self._temporary / "forks"

    def run(self) -> NoReturn:
        """Keep a JVM until the process is ended; end with 1 when a JVM does not live."""
        while True:
            started = time.monotonic()
            with self._log.open("ab") as log:
                forks = Forks(self._socket, LIBRARIES, log)
                gateway = self._start(forks)
                served = self._watch(gateway, forks)
                self._end(gateway, forks)
            if not served and time.monotonic() - started < _SHORT_LIFE:
                sys.exit("the JVM ended by itself")

    def _start(self, forks: Forks) -> Any:
        from pyspark.java_gateway import launch_gateway

        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        forks.await_ready()
        told = {
            "port": gateway.gateway_parameters.port,
            "secret": gateway.gateway_parameters.auth_token,
            "forks": str(self._socket),
            "log": str(self._log),
            "served": 0,
            # The process that uses it, or was killed while it did.
            "by": 0,
        }
        # Another file in the place of the last one: who still has that one's lock has no other JVM than that one's.
        write_private(self._file, as_note(told))
        return gateway

    def _watch(self, gateway: Any, forks: Forks) -> int:
        """Return how many applications the JVM has served, once it has ended or is to be replaced."""
        tidied, served = 0, 0
        # NFS locks only what is open for writing.
        with self._file.open("r+b") as file:
            while gateway.proc.poll() is None and forks.is_running():
                time.sleep(_LOOK_AGAIN)
                # An application has the lock, or the JVM has just ended.
                with suppress(OSError, Py4JError), locked(file):
                    told = read_note(file.fileno())
                    served = int(told["served"])
                    if told["by"] or served >= MOST_SERVED:
                        # No other application begins: the file is gone before its lock is free.
                        self._withdraw(file)
                        return served
                    if served != tidied:
                        # What the last one used goes back to the system while the JVM waits.
                        gateway.jvm.java.lang.System.gc()
                        tidied = served
            self._withdraw(file)
            self._hear_out(file)
            told = read_note(file.fileno())
            return int(told["served"]) + bool(told["by"])

    def _hear_out(self, file: BinaryIO) -> None:
        """Let a driver whose JVM has ended say so."""
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until:
            with suppress(BlockingIOError), locked(file):
                return
            time.sleep(_LOOK_AGAIN)

    def _withdraw(self, file: BinaryIO) -> None:
        """Remove the file, unless another keeper has put its own there."""
        with suppress(FileNotFoundError):
            if self._file.stat().st_ino == os.fstat(file.fileno()).st_ino:
                self._file.unlink()

    def _end(self, gateway: Any, forks: Forks) -> None:
        forks.end()
        # At once: it is idle, or runs the tasks of a driver that is no more.
        gateway.proc.kill()
        gateway.proc.wait()
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        # What a JVM that was killed has left, shuffle files of the last application among it.
        for left in self._temporary.glob("[!.]*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def locked(file: BinaryIO) -> Iterator[None]:
    """Hold the lock of the file in this block. Raises BlockingIOError while an application holds it."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def main(log: str) -> NoReturn:
    """Keep a JVM until SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        gateway_file(settings()).unlink(missing_ok=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    driver_folders.hold()
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments()
    Keeper(Path(log)).run()


if __name__ == "__main__":
    main(sys.argv[1])
