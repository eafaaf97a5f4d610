"""Exit codes of a driver's own command line."""

from __future__ import annotations

import os

import pytest

from tests.conftest import REPOSITORY, warm_python


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
    done = warm_python().run([str(entry), *arguments], dict(os.environ), REPOSITORY)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
