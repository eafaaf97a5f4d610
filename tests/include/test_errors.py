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


def test_meaning_is_its_own_when_an_exit_code_exists() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TidemarkError)}
    meanings = {c.exit_code: error_class(c.exit_code).meaning for c in classes}
    assert len(set(meanings.values())) == len(meanings)


def test_error_is_retried_like_its_parent_when_it_is_below_one() -> None:
    assert errors.TopicRecreated.retryable is errors.OffsetsLost.retryable
    assert errors.TopicRecreated.meaning == errors.OffsetsLost.meaning
