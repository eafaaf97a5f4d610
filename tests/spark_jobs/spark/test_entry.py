"""Exit codes of a driver's own command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--pipeline", "nest_cameras"], 64, "the following arguments are required: --attempt"),
        (["--pipeline", "nest_cameras", "--attempt", "first"], 64, "invalid int value: 'first'"),
        (["--help"], 0, "Builds and reconciles one interval"),
    ],
)
def test_wrong_arguments_are_no_failed_validation_when_a_driver_is_started_by_hand(
    arguments: list[str], code: int, said: str
) -> None:
    entry = REPOSITORY / "spark_jobs" / "build_interval.py"
    done = subprocess.run(
        [sys.executable, str(entry), *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
