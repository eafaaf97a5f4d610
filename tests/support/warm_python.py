"""A Python process that has imported the libraries, and makes each process that a test run's commands need by a fork.

A command of Tidemark imports for a second, a Spark driver for three: most of it SQLAlchemy, PyArrow, PySpark, pandas
and Great Expectations. Tidemark's own modules are not imported before the fork, so every process has them from where
its `PYTHONPATH` says, and in the state in which Python reads them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "alembic.command", "confluent_kafka.admin", "fastavro", "great_expectations", "great_expectations.expectations",
    "httpx", "httpx_sse", "jinja2", "pandas", "psutil", "psycopg2.extras", "py4j.java_gateway", "pyarrow.dataset",
    "pyarrow.parquet", "pyspark.sql.functions", "pyspark.sql.streaming", "pyspark.testing",
    "rich.console", "rich.live", "sqlalchemy.dialects.postgresql", "sqlalchemy.orm", "typer",
)  # fmt: skip

ADDRESS = "TIDEMARK_TEST_PYTHON"
"""Environment variable that names the socket of the process."""

_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment of libraries that would start threads when they are imported."""

_PR_SET_PDEATHSIG = 1
_LARGEST_REQUEST = 1 << 17


class WarmPython:
    """The process, from its first use until `end`."""

    def __init__(self, folder: Path) -> None:
        # A socket's path has 107 characters at most, which a folder of tests may exceed.
        self._sockets = tempfile.TemporaryDirectory(prefix="tidemark-tests-", ignore_cleanup_errors=True)
        self._log = folder / "python.log"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment in which its commands, and a `stand_in`, can ask it, too."""
        return {ADDRESS: self._address()}

    def stand_in(self, file: str) -> list[str]:
        """Return a command that runs `python FILE ARGUMENTS…` in the process, with the arguments of `python FILE`."""
        return [sys.executable, "-S", "-I", __file__, "ask", file]

    def _address(self) -> str:
        address = f"{self._sockets.name}/socket"
        if self._process is None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    # Tidemark is nowhere on its path.
                    [sys.executable, "-P", __file__, "serve", address],
                    env={**os.environ, "PYTHONPATH": "", **_NO_THREADS},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            assert self._process.stdout is not None
            assert self._process.stdout.readline(), f"it did not start: {self._log.read_text()[-2000:]}"
        return address

    def run(self, arguments: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS…`, as `subprocess.run` would with a time limit of ten minutes."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            code = ask(self._address(), arguments, environment, cwd, (out.fileno(), err.fileno()), 600)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def end(self) -> None:
        """End the process, and whatever it made that still runs."""
        if self._process is not None:
            self._process.communicate(timeout=30)
        self._sockets.cleanup()


def ask(
    address: str,
    arguments: list[str],
    environment: dict[str, str],
    cwd: Path,
    output: tuple[int, int],
    timeout: float | None = None,
) -> int:
    """Have `python ARGUMENTS…` run; its exit code, negative for a signal. It is killed when the caller ends.

    `arguments`: `-m MODULE …` or `FILE …`. `output`: descriptors of standard output and error.
    """
    request = json.dumps({"arguments": arguments, "environment": environment, "cwd": str(cwd)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        socket.send_fds(connection, [request], output)
        try:
            answer = connection.recv(64)
        except TimeoutError:
            raise subprocess.TimeoutExpired(arguments, timeout or 0) from None
    assert answer, "the tests' Python process ended"
    return int(answer)


def _serve(address: str) -> dict[str, Any]:
    """Fork for every request until standard input is closed; returns a request, in the process that was made for it."""
    selector = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request, output, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 2)
                pid = os.fork()
                if not pid:
                    # All other descriptors, including those of other requests, belong to others.
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                    os.dup2(output[0], 1)
                    os.dup2(output[1], 2)
                    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                    asked: dict[str, Any] = json.loads(request)
                    return asked
                for descriptor in output:
                    os.close(descriptor)
                process = os.pidfd_open(pid)
                selector.register(process, selectors.EVENT_READ, (pid, connection))
                selector.register(connection, selectors.EVENT_READ, pid)
            elif key.fileobj == sys.stdin.fileno():
                sys.exit()
            elif isinstance(key.data, tuple):
                pid, connection = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                selector.unregister(key.fileobj)
                os.close(key.fd)
                with suppress(KeyError):
                    selector.unregister(connection)
                with suppress(OSError):
                    connection.send(str(code).encode())
                connection.close()
            else:
                # The caller has ended.
                selector.unregister(key.fileobj)
                with suppress(ProcessLookupError):
                    os.kill(key.data, signal.SIGKILL)


def _become(request: dict[str, Any]) -> None:
    """Become the requested process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    arguments = request["arguments"]
    own = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path[:0] = [request["cwd"], *own]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[:0] = [str(Path(arguments[0]).parent), *own]
        runpy.run_path(arguments[0], run_name="__main__")


def _main(address: str) -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    # After a fork there is one thread, and locks that others held stay locked.
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a library has started a thread"
    gc.collect()
    gc.freeze()
    _become(_serve(address))


def _stand_in(arguments: list[str]) -> NoReturn:
    """Run the arguments in this process's environment, and end with the same exit code."""
    code = ask(os.environ[ADDRESS], arguments, dict(os.environ), Path.cwd(), (1, 2))
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _main(sys.argv[2])
    else:
        _stand_in(sys.argv[2:])
