"""How many workers a run of the tests gets."""

from __future__ import annotations

import pytest

from include.cli import develop


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 4),
        (("-m", "slow"), 3),
        (("-m", "slow", "--splits", "4", "--group", "2"), 3),
        (("-m", "slow", "-n", "2"), None),
        (("-n0",), None),
        (("--numprocesses=2", "-m", "slow"), None),
        (("tests/docs",), None),
        (("-x", "tests/include/cli/test_develop.py::test_whole_tiers_run_several_modules_at_a_time"), None),
    ],
)
def test_whole_tiers_run_several_modules_at_a_time(arguments: tuple[str, ...], count: int | None) -> None:
    assert tuple(develop.workers(arguments)[:2]) == (("-n", str(count)) if count else ())
