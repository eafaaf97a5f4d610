"""How many workers a run of the tests gets."""

from __future__ import annotations

import pytest

from include.cli import develop


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        ((), True),
        (("-m", "slow"), True),
        (("-m", "slow", "--splits", "4", "--group", "2"), True),
        (("-m", "slow", "-n", "2"), False),
        (("-n0",), False),
        (("--numprocesses=2", "-m", "slow"), False),
        (("tests/docs",), False),
        (("-x", "tests/include/cli/test_develop.py::test_whole_tiers_run_three_modules_at_a_time"), False),
    ],
)
def test_whole_tiers_run_three_modules_at_a_time(arguments: tuple[str, ...], parallel: bool) -> None:
    assert tuple(develop.workers(arguments)[:2]) == (("-n", "3") if parallel else ())
