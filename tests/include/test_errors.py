"""The error tree: what an exit code means, and whether running again may help."""

from __future__ import annotations

import pytest

from include import errors
from include.errors import TidemarkError, error_class


@pytest.mark.parametrize(
    ("exit_code", "name", "retryable"),
    [
        (1, "TidemarkError", True),
        (2, "ValidationFailed", False),
        (3, "ReconciliationFailed", False),
        (4, "OffsetsLost", False),
        (5, "AnotherWriter", True),
        (6, "ServiceUnreachable", True),
        (7, "ArchiveBehind", True),
        (64, "UsageError", False),
        # Ended by a signal.
        (137, "TidemarkError", True),
    ],
)
def test_class_and_retry_are_named_when_an_exit_code_is_known(exit_code: int, name: str, retryable: bool) -> None:
    assert error_class(exit_code).__name__ == name
    assert error_class(exit_code).retryable is retryable


def classes() -> list[type[TidemarkError]]:
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TidemarkError)]


def test_meaning_is_its_own_when_an_exit_code_exists() -> None:
    meanings = {c.exit_code: error_class(c.exit_code).meaning for c in classes()}
    assert len(set(meanings.values())) == len(meanings)


def test_every_error_has_its_exit_code_s_answer_when_airflow_asks_whether_to_try_again() -> None:
    asked = [(each, error_class(each.exit_code)) for each in classes()]
    others = [each for each, top in asked if (each.retryable, each.meaning) != (top.retryable, top.meaning)]
    assert others == []
