"""The order of a parallel run's modules, and the durations by which the long tier is split."""

from __future__ import annotations

import json

from tests.conftest import DURATIONS, REPOSITORY
from tests.support.turns import FIRST, TESTS, WAITING, in_turn


def test_modules_are_there_when_their_turn_is_named() -> None:
    assert [name for name in (*FIRST, *WAITING) if not (TESTS / name).exists()] == []
    assert len({*FIRST, *WAITING}) == len(FIRST) + len(WAITING)


def test_modules_that_keep_a_core_busy_lie_between_those_with_services() -> None:
    rest = {TESTS / "c0.py": {"parametrize"}}
    services = {TESTS / f"a{n}.py": {"services"} for n in range(4)}
    spark = {TESTS / "b0.py": {"spark"}, TESTS / "b1.py": {"spark", "services"}}
    named = {TESTS / name: {"services"} for name in (WAITING[0], FIRST[0])}
    order = [module.relative_to(TESTS).as_posix() for module in in_turn(rest | services | spark | named)]
    assert order == [FIRST[0], WAITING[0], "a0.py", "b0.py", "a1.py", "a2.py", "b1.py", "a3.py", "c0.py"]


def test_test_is_there_and_of_the_long_tier_when_its_duration_is_noted() -> None:
    gone = []
    for name in json.loads(DURATIONS.read_text()):
        module, _, test = name.partition("::")
        text = (REPOSITORY / module).read_text() if (REPOSITORY / module).exists() else ""
        # The module, a test, or one of the parameters is marked.
        if f"\ndef {test.partition('[')[0]}(" not in text or "mark.slow" not in text:
            gone.append(name)
    assert gone == []
