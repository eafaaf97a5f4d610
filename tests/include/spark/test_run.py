"""How a command ends when its driver does: a program that stands for `spark-submit` ends in its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.settings import settings
from include.spark.run import run_job, run_stream_job, run_watched_job
from include.spark.submission import SparkSubmission

PROGRAM = """#!/bin/sh
echo "tidemark: isp_hits: validating"
{ends}
"""

Runs = Callable[[SparkSubmission], int]


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], SparkSubmission]]:
    """Makes the submission of a driver that ends by these words of a shell."""

    def make(words: str) -> SparkSubmission:
        program = tmp_path / "spark-submit"
        program.write_text(PROGRAM.format(ends=words))
        program.chmod(0o700)
        monkeypatch.setattr(SparkSubmission, "command", lambda job: [str(program)])
        return SparkSubmission("publish", ("--pipeline", "isp_hits", "--attempt", "7"), "publish isp_hits")

    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    settings.cache_clear()
    yield make
    settings.cache_clear()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals of this process are its own again afterwards; one that comes too early ends nothing."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "run", [run_job, run_stream_job, lambda job: run_watched_job(job, lambda: None)], ids=["job", "stream", "watched"]
)
@pytest.mark.parametrize(
    ("words", "number"),
    [("kill -9 $$", 9), ("exit 137", 9), ("exit 247", 9), ("exit 143", 15)],
    ids=["killed", "its shell tells", "its driver was killed", "ended by a signal that nobody sent on purpose"],
)
def test_killed_driver_is_reported_as_a_failure_when_it_could_say_nothing(
    ends: Callable[[str], SparkSubmission], capfd: pytest.CaptureFixture[str], run: Runs, words: str, number: int
) -> None:
    assert run(ends(words)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"tidemark: isp_hits: the driver was killed (signal {number}) — ")


@pytest.mark.parametrize("code", [0, 2, 4, 64])
def test_exit_code_is_the_driver_s_when_it_ended_by_itself(
    ends: Callable[[str], SparkSubmission], capfd: pytest.CaptureFixture[str], code: int
) -> None:
    assert run_job(ends(f"exit {code}")) == code
    assert "killed" not in capfd.readouterr().err


def test_exit_code_is_zero_when_a_stream_was_asked_to_stop_before_it_had_a_driver(
    ends: Callable[[str], SparkSubmission], capfd: pytest.CaptureFixture[str]
) -> None:
    job = ends(f"sleep 1; kill -TERM {os.getpid()}; exec sleep 60")
    assert run_stream_job(job) == 0
    assert "killed" not in capfd.readouterr().err
