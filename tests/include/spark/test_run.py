"""How a command ends when its driver does: a program that stands for `spark-submit` ends in its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from include.errors import ServiceUnreachable
from include.spark.run import run_job, run_stream_job, run_watched_job
from include.spark.submission import SparkSubmission
from tests.conftest import REPOSITORY, SetSettings

PROGRAM = """#!/bin/sh
echo "10:11:12 WARN Utils: Set SPARK_LOCAL_IP"
{says}
{ends}
"""
SAYS = 'echo "tidemark: isp_hits: validating"'

Runs = Callable[[SparkSubmission], int]


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> Callable[..., SparkSubmission]:
    """Makes the submission of a driver that ends by these words of a shell, after a line of its own or another."""

    def make(words: str, says: str = SAYS) -> SparkSubmission:
        program = tmp_path / "spark-submit"
        program.write_text(PROGRAM.format(says=says, ends=words))
        program.chmod(0o700)
        monkeypatch.setattr(SparkSubmission, "command", lambda job: [str(program)])
        return SparkSubmission("publish", ("--pipeline", "isp_hits", "--attempt", "7"), "publish isp_hits")

    set_settings(TIDEMARK_HOME=str(tmp_path))
    return make


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A signal that comes too early ends nothing; each run gives back the handlers that it found."""

    def ignore(number: int, frame: object) -> None:
        pass

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, ignore) for number in numbers}
    yield
    found = [signal.getsignal(number) for number in numbers]
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == [ignore, ignore]


@pytest.mark.parametrize(
    "run", [run_job, run_stream_job, lambda job: run_watched_job(job, lambda: True)], ids=["job", "stream", "watched"]
)
@pytest.mark.parametrize(
    ("words", "number"),
    [("kill -9 $$", 9), ("exit 137", 9), ("exit 247", 9), ("exit 143", 15)],
    ids=["killed", "its shell tells", "its driver was killed", "ended by a signal that nobody sent on purpose"],
)
def test_killed_driver_is_reported_as_a_failure_when_it_could_say_nothing(
    ends: Callable[..., SparkSubmission], capfd: pytest.CaptureFixture[str], run: Runs, words: str, number: int
) -> None:
    assert run(ends(words)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"tidemark: isp_hits: the driver was killed (signal {number}) — ")


@pytest.mark.parametrize("code", [0, 2, 4, 64])
def test_exit_code_is_the_driver_s_when_it_ended_by_itself(
    ends: Callable[..., SparkSubmission], capfd: pytest.CaptureFixture[str], code: int
) -> None:
    assert run_job(ends(f"exit {code}")) == code
    assert "killed" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "run", [run_job, run_stream_job, lambda job: run_watched_job(job, lambda: True)], ids=["job", "stream", "watched"]
)
@pytest.mark.parametrize("code", [2, 4, 64])
def test_exit_code_is_1_when_the_driver_ended_before_a_line_of_its_own(
    ends: Callable[..., SparkSubmission], capfd: pytest.CaptureFixture[str], run: Runs, code: int
) -> None:
    cannot_open = "python3: can't open file 'publish.py': [Errno 2] No such file or directory"
    assert run(ends(f"exit {code}", f'echo "{cannot_open}"')) == 1
    shown = capfd.readouterr().err
    assert cannot_open in shown
    assert "WARN Utils" in shown


@pytest.mark.parametrize("code", [101, 126, 127])
def test_exit_code_is_1_when_the_contract_has_no_such_code(ends: Callable[..., SparkSubmission], code: int) -> None:
    assert run_job(ends(f"exit {code}")) == 1


def test_exit_code_is_zero_when_a_stream_was_asked_to_stop_before_it_had_a_driver(
    ends: Callable[..., SparkSubmission], capfd: pytest.CaptureFixture[str]
) -> None:
    job = ends(f"sleep 1; kill -TERM {os.getpid()}; exec sleep 60")
    assert run_stream_job(job) == 0
    assert "killed" not in capfd.readouterr().err


def test_command_ends_when_the_stream_is_a_step_of_it_and_was_asked_to_stop(
    ends: Callable[..., SparkSubmission],
) -> None:
    job = ends(f"sleep 1; kill -INT {os.getpid()}; exec sleep 60")
    with pytest.raises(KeyboardInterrupt):
        run_stream_job(job, is_step=True)
    assert run_stream_job(ends("exit 0"), is_step=True) == 0


@pytest.mark.parametrize(
    "run", [run_job, run_stream_job, lambda job: run_watched_job(job, lambda: True)], ids=["job", "stream", "watched"]
)
def test_driver_goes_on_to_its_end_when_nothing_can_be_written_to_standard_error(
    ends: Callable[..., SparkSubmission], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Runs
) -> None:
    ended = tmp_path / "ended"
    says = "for each in $(seq 5000); do echo 'tidemark: isp_hits: a line of more than forty letters'; done"
    job = ends(f"touch {ended}; exit 4", says)
    codes = []
    # What it holds back cannot be written when it is closed, either.
    with suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        codes.append(run(job))
    assert codes == [4]
    assert ended.exists()


def test_command_ends_by_ctrl_c_when_its_driver_says_much_at_its_end(ends: Callable[..., SparkSubmission]) -> None:
    job = ends(f"trap 'head -c 300000 /dev/zero; exit 143' TERM; kill -INT {os.getpid()}; sleep 1 & wait; wait")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_job(job)
    finally:
        signal.signal(signal.SIGINT, before)


def test_driver_ends_in_order_when_what_looks_at_it_fails(ends: Callable[..., SparkSubmission], tmp_path: Path) -> None:
    ended = tmp_path / "ended"

    def look() -> bool:
        raise ServiceUnreachable("PostgreSQL is away")

    job = ends(f"trap 'touch {ended}; exit 0' TERM; for each in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; done; exit 3")
    with pytest.raises(ServiceUnreachable, match="is away"):
        run_watched_job(job, look)
    assert ended.exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("trap 'exit 0' TERM; for each in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; done; exit 3", 0),
        ("exit 6", 6),
    ],
    ids=["it runs", "it ended before the last look"],
)
def test_exit_code_is_the_driver_s_when_nobody_looks_any_longer(
    ends: Callable[..., SparkSubmission], words: str, code: int
) -> None:
    assert run_watched_job(ends(words), lambda: False) == code


DRIVER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").close(), sys.exit(0)))
subprocess.Popen([sys.executable, "-c", ""])
time.sleep(0.5)
open(sys.argv[2], "w").close()
time.sleep(60)
"""
"""A driver below whom a process has ended that nobody has waited for: it has no command line any more."""


def test_driver_is_asked_to_stop_when_a_process_below_it_has_just_ended(
    ends: Callable[..., SparkSubmission], tmp_path: Path
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    stopped, ready = tmp_path / "stopped", tmp_path / "ready"
    signalled = f"until [ -e {ready} ]; do sleep 0.1; done; kill -TERM {os.getpid()}; wait $driver"
    assert (
        run_stream_job(ends(f"{sys.executable} {tmp_path}/driver.py {stopped} {ready} & driver=$!; {signalled}")) == 0
    )
    assert stopped.exists()


@pytest.mark.parametrize("module", ["pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"])
def test_driver_is_asked_to_stop_when_a_worker_has_a_lower_process_id(
    ends: Callable[..., SparkSubmission], tmp_path: Path, module: str
) -> None:
    folder = tmp_path / "daemon"
    folder.mkdir()
    (folder / "driver.py").write_text(DRIVER)
    stopped, ready = tmp_path / "stopped", tmp_path / "ready"
    worker = f"{sys.executable} -c 'import time; time.sleep(60)' -m {module} & worker=$!"
    driver = f"{sys.executable} {folder}/driver.py {stopped} {ready} & driver=$!"
    signalled = f"until [ -e {ready} ]; do sleep 0.1; done; kill -TERM {os.getpid()}; wait $driver; kill $worker"
    assert run_stream_job(ends(f"{worker}\n{driver}\n{signalled}")) == 0
    assert stopped.exists()


def test_driver_ends_when_its_command_was_killed_before_it_was_tied_to_it() -> None:
    started = "from include.spark.run import _die_with; _die_with(2**22 + 1)"
    assert subprocess.run([sys.executable, "-c", started], cwd=REPOSITORY, check=False).returncode == -signal.SIGKILL
