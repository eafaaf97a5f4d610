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
def test_exit_code_names_its_class_and_whether_a_retry_may_help(exit_code: int, name: str, retryable: bool) -> None:
    assert error_class(exit_code).__name__ == name
    assert error_class(exit_code).retryable is retryable


def test_every_exit_code_has_a_meaning_of_its_own() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TidemarkError)}
    meanings = {c.exit_code: error_class(c.exit_code).meaning for c in classes}
    assert len(set(meanings.values())) == len(meanings)


def test_error_below_another_is_retried_like_it() -> None:
    assert errors.TopicRecreated.retryable is errors.OffsetsLost.retryable
    assert errors.TopicRecreated.meaning == errors.OffsetsLost.meaning
