"""A Python process that has imported libraries, and makes each process that it is asked for by a fork.

A driver imports for three seconds of CPU time: PySpark, pandas, PyArrow, SQLAlchemy and Great Expectations. Tidemark's
own modules are not imported before the fork, so every process has them from where its `PYTHONPATH` says, and in the
state in which Python reads them.

    python -P forks.py serve SOCKET LIBRARY…
    python forks.py ask SOCKET ARGUMENTS…      # in place of `python ARGUMENTS…`

This file needs nothing but Python's own library, for the process has Tidemark nowhere on its path.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

Address = str | Path
"""Path of the process's socket, whose folder is its user's alone."""

_NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of libraries that would start threads when they are imported."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LARGEST_REQUEST = 1 << 17
_MOST_FILES = 8
_MOST_PATIENCE = 10.0
"""Seconds."""


class Forks:
    """The process, from its start until `end`; it ends with this one, and whatever it made ends with it."""

    def __init__(self, address: Address, libraries: Sequence[str], log: BinaryIO) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(address), *libraries],
            # As Spark starts its drivers, whose workers must hash alike.
            env={**os.environ, "PYTHONPATH": "", "PYTHONHASHSEED": "0", **_NO_THREADS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )

    def await_ready(self) -> None:
        """Wait until it has imported its libraries. Raises RuntimeError where it cannot."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the process that forks ended with {self._process.wait()}: {self._log.name} says why")

    def is_running(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process, and whatever it made that still runs."""
        self._process.communicate(timeout=30)


def ask(
    address: Address,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: Address,
    files: Sequence[int],
    timeout: float | None = None,
    begun: Callable[[int], object] = os.close,
) -> int:
    """Have `python ARGUMENTS…` run; return its exit code, negative for a signal. It is killed when the caller ends.

    `arguments`: `-m MODULE …` or `FILE …`. `files`: descriptors of standard output and error, and of what the process
    is to hold open besides. `begun` gets a descriptor of the process, a `pidfd`, which is its own from then on.

    Raises OSError when there is nobody to be asked, or the environment is too large, before anything was begun, and
    subprocess.TimeoutExpired.
    """
    asked = {"arguments": [*arguments], "environment": {**environment}, "cwd": str(cwd), "umask": _umask()}
    request = json.dumps(asked).encode()
    if len(request) > _LARGEST_REQUEST:
        raise OSError(errno.EMSGSIZE, f"arguments and environment have {len(request)} characters")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout)
        with _short(address) as path:
            connection.connect(path)
        socket.send_fds(connection, [request], files)
        answer, [*descriptors], _, _ = socket.recv_fds(connection, 64, 1)
        if not descriptors:
            raise ConnectionError("the process that forks ended")
        begun(descriptors[0])
        try:
            answer = connection.recv(64)
        except TimeoutError:
            raise subprocess.TimeoutExpired([*arguments], timeout or 0) from None
        except ConnectionError:
            answer = b""
    # It has ended, and whatever it had made with it.
    return int(answer) if answer else -signal.SIGKILL


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def _short(address: Address) -> Iterator[str]:
    """Another path of the socket: one of more than 107 characters can neither be bound nor connected to."""
    folder = os.open(Path(address).parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{Path(address).name}"
    finally:
        os.close(folder)


def _serve(address: str) -> dict[str, Any]:
    """Fork for every request until standard input is closed; returns a request, in the process that was made for it."""
    selector = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short(address) as path:
        listener.bind(path)
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() < 0:
                # Its process has ended, which was told at the same time.
                continue
            if key.fileobj is listener:
                connection, _ = listener.accept()
                # Others wait while this one says what it wants, or has ended.
                connection.settimeout(_MOST_PATIENCE)
                request, files = b"", list[int]()
                with suppress(OSError):
                    request, files, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, _MOST_FILES)
                if not request:
                    connection.close()
                    continue
                pid = os.fork()
                if not pid:
                    _leave(selector, connection)
                    _keep_only(files)
                    asked: dict[str, Any] = json.loads(request)
                    return asked
                for descriptor in files:
                    os.close(descriptor)
                process = os.pidfd_open(pid)
                with suppress(OSError):
                    socket.send_fds(connection, [b"begun"], [process])
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


def _leave(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    """Close what belongs to the process that forks: later, these numbers are of other files."""
    for key in [*selector.get_map().values()]:
        for each in (key.fileobj, *(key.data if isinstance(key.data, tuple) else ())):
            if isinstance(each, socket.socket):
                each.close()
    selector.close()
    connection.close()


def _keep_only(files: list[int]) -> None:
    """Make these descriptors 1, 2 and so on; all others, including those of other requests, belong to others."""
    # First out of the way of each other.
    apart = [os.dup(each) for each in files]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, each in enumerate(apart, start=1):
        os.dup2(each, number)
    os.closerange(len(files) + 1, os.sysconf("SC_OPEN_MAX"))


def _become(request: dict[str, Any]) -> NoReturn:
    """Become the requested process, and end as it ends."""
    code: object = None
    try:
        _run(request)
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
    _end(code if isinstance(code, int) else int(code is not None))


def _end(code: int) -> NoReturn:
    """End as Python does, but leave its objects where they are.

    Python takes all apart that was imported before the fork, for which the system first copies every page of it: nine
    tenths of what a process costs that does nothing.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        if not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        # Python's own code for it.
        code = 120
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _run(request: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    # What a library has asked for was another process's folder.
    tempfile.tempdir = None
    arguments = request["arguments"]
    own = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path[:0] = [request["cwd"], *own]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        # What `top` and `ps` show of it.
        ctypes.CDLL(None).prctl(_PR_SET_NAME, Path(arguments[0]).stem.encode())
        sys.argv = arguments
        sys.path[:0] = [str(Path(arguments[0]).parent), *own]
        runpy.run_path(arguments[0], run_name="__main__")


def _main(address: str, libraries: list[str]) -> None:
    for library in libraries:
        importlib.import_module(library)
    # After a fork there is one thread, and locks that others held stay locked.
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        sys.exit("a library has started a thread: drivers cannot be forked from a process with several")
    # Some systems refuse it, which is to be told now.
    os.close(os.pidfd_open(os.getpid()))
    gc.collect()
    gc.freeze()
    server = os.getpid()
    request = _serve(address)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(128 + signal.SIGKILL)
    _become(request)


def _stand_in(address: str, arguments: list[str]) -> NoReturn:
    """Run the arguments in this process's environment, and end with the same exit code."""
    code = ask(address, arguments, os.environ, Path.cwd(), (1, 2))
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    {"serve": _main, "ask": _stand_in}[sys.argv[1]](sys.argv[2], sys.argv[3:])
