"""Runs a Spark application in the foreground for the command line."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import psutil

from include.errors import TidemarkError
from include.spark import driver_folders
from include.spark.cluster_run import run_on_cluster, run_stream_on_cluster
from include.spark.driver_lines import OWN, DriverLines, pipeline_of
from include.spark.submission import SparkSubmission

_PR_SET_PDEATHSIG = 1


# Looked up before a fork: after it, a lock that another thread holds stays locked.
_prctl = ctypes.CDLL(None).prctl


def _die_with(parent: int) -> None:
    # kill -9 of the command is kill -9 of its driver: no orphan goes on writing.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _start(job: SparkSubmission) -> subprocess.Popen[str]:
    # In a session of its own: Ctrl-C reaches this process alone, which asks the driver to stop.
    return subprocess.Popen(
        job.command(),
        env={**os.environ, **job.env},
        stdin=subprocess.DEVNULL,
        # spark-submit sends the driver's output, errors included, to its standard output.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=partial(_die_with, os.getpid()),
    )


def _pass_on(process: subprocess.Popen[str], lines: DriverLines) -> None:
    """Write the lines that pass to standard error; `lines` holds back the rest."""
    assert process.stdout is not None
    for line in process.stdout:
        if lines.passes(line):
            _write(line)


def _write(text: str) -> None:
    """Write to standard error; drop what cannot be written, since its terminal is gone or its disk full.

    A driver must not end for that, nor stand still because nobody reads what it says.
    """
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def run_job(job: SparkSubmission) -> int:
    """Run a Spark application to its end and return its exit code. Its messages go to standard error."""
    if job.mode == "cluster":
        return run_on_cluster(job)
    process, lines = _start(job), DriverLines()
    try:
        _pass_on(process, lines)
        code = process.wait()
        _show(lines.reasons(lines.exit_code(code)) if code else ())
        return _own_code(job, code, lines)
    except KeyboardInterrupt:
        # It may have ended just now.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        # Read to its end: a driver whose words nobody reads may not come to it.
        _pass_on(process, lines)
        process.wait()
        raise
    finally:
        driver_folders.sweep()


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        _write(f"{line}\n")


def _own_code(job: SparkSubmission, code: int, lines: DriverLines) -> int:
    """Return the exit code of a driver as commands end with it, and report one that a signal ended: it said nothing.

    `spark-submit` ends with the signal's number beyond 128 or, where its driver was killed, below 256.
    """
    if 0 <= code < 128:
        return lines.exit_code(code)
    number = -code if code < 0 else min(code - 128, 256 - code)
    ended = f"was killed (signal {number})" if code != 255 else "ended with exit code 255"
    failed = TidemarkError(
        f"the driver {ended}",
        remedy="was memory short? nothing half written was committed; start it again",
        pipeline=pipeline_of(job.arguments),
    )
    _show([f"{OWN}{failed}"])
    return failed.exit_code


def run_attached(job: SparkSubmission) -> int:
    """Run a driver that uses the terminal and return its exit code. Ctrl-C goes to the driver alone."""
    command, environment = job.attached()
    process = subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=partial(_die_with, os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        driver_folders.sweep()


class AskedToStop(BaseException):
    """SIGTERM or SIGINT came before there was a driver that could be asked."""


@contextmanager
def _on_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call the handler at SIGTERM and SIGINT in this block only: the command's next step is not its driver's."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise AskedToStop in this block at SIGTERM and SIGINT, until a driver's start takes them over."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise AskedToStop

    with _on_signals(stop):
        try:
            yield
        except BaseException:
            # A library in C may make another exception of one that is raised inside its call.
            if asked:
                raise AskedToStop from None
            raise


class _StopOnSignal:
    """Asks a driver to stop when this process gets SIGTERM or SIGINT, as long as the driver runs."""

    def __init__(self, job: SparkSubmission, process: subprocess.Popen[str]) -> None:
        self._job = job
        self._process = process
        self.lines = DriverLines(shows_warnings=True)
        self.is_asked = False

    def ask(self, *_: object) -> None:
        """Ask the driver to stop; also the handler of both signals."""
        self.is_asked = True
        _forward(self._process)

    def code(self, code: int) -> int:
        """Return the exit code of a driver that ended with `code`; report one that was killed."""
        # A driver that was still starting has nothing to finish: if the signal ended it, it stopped as asked.
        was_starting = self.is_asked and code in (-signal.SIGTERM, 128 + signal.SIGTERM)
        return 0 if was_starting else _own_code(self._job, code, self.lines)


def run_stream_job(
    job: SparkSubmission, ask_to_stop: Callable[[], bool] = lambda: False, *, is_step: bool = False
) -> int:
    """Run a stream and return its exit code; SIGTERM and SIGINT ask its driver to stop after the micro-batch.

    `ask_to_stop` does so on the cluster, where no signal reaches it; it returns False while there is no driver yet.
    `is_step`: of a longer command, which the signal ends too: raises KeyboardInterrupt once the driver has stopped.
    """
    if job.mode == "cluster":
        signals: list[int] = []
        with _on_signals(lambda number, _: signals.append(number)):
            code = run_stream_on_cluster(job, ask_to_stop, lambda: bool(signals))
        is_asked = bool(signals)
    else:
        process = _start(job)
        stop = _StopOnSignal(job, process)
        with _on_signals(stop.ask):
            _pass_on(process, stop.lines)
            code = process.wait()
        driver_folders.sweep()
        code, is_asked = stop.code(code), stop.is_asked
    if is_step and is_asked:
        raise KeyboardInterrupt
    return code


def run_watched_job(job: SparkSubmission, look: Callable[[], bool]) -> int:
    """Run a Spark application, `look` twice a second and once after its end, and return its exit code.

    SIGTERM and SIGINT ask it to stop, and so does `look` by returning False; the code is 0 then. Where `look` raises,
    the driver ends in order before.
    """
    process = _start(job)
    stop = _StopOnSignal(job, process)
    passing_on = threading.Thread(target=_pass_on, args=(process, stop.lines), daemon=True)
    passing_on.start()
    with _on_signals(stop.ask):
        code = _watch(process, look, stop)
    passing_on.join(5)
    driver_folders.sweep()
    look()
    return stop.code(code)


def _watch(process: subprocess.Popen[str], look: Callable[[], bool], stop: _StopOnSignal) -> int:
    while True:
        # Between two looks.
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
        try:
            goes_on = look()
        except BaseException:
            # Else the driver would be killed with this process, in the middle of a micro-batch.
            stop.ask()
            process.wait()
            raise
        if not goes_on:
            stop.ask()
            return process.wait()


def _forward(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the Python driver under the JVM; to the JVM itself while there is none yet.

    The JVM would end at once on the signal; the driver finishes its micro-batch and then ends the JVM.
    """
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    drivers = [child for child in children if _is_driver(child)]
    for target in drivers[:1]:
        with suppress(psutil.NoSuchProcess):
            target.send_signal(signal.SIGTERM)
    if not drivers:
        process.send_signal(signal.SIGTERM)


def _is_driver(process: psutil.Process) -> bool:
    """Whether it is the Python driver; a worker or a shell of the JVM may end at any moment.

    Workers run one of PySpark's modules. Their process ids may be lower than the driver's, since the numbers run out.
    """
    try:
        return "python" in process.name() and not any(part.startswith("pyspark.") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
