"""Whoever launched a stream's driver is told how it ended."""

from __future__ import annotations

import pytest

from include.errors import OffsetsLost
from include.ledger.streams import launches
from spark_jobs.streaming.launch import noting_end
from tests.conftest import Home

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    ("thrown", "code", "error"),
    [
        (OffsetsLost("gone", remedy="accept it"), 4, "gone — accept it"),
        # Not of Tidemark's tree: its type decides its meaning, and the process's exit code.
        (ConnectionRefusedError(111, "Connection refused"), 6, "Kafka or PostgreSQL: "),
        (ValueError("a bug"), 1, "ValueError"),
    ],
)
def test_exit_code_and_error_are_noted_when_a_stream_fails(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, thrown: Exception, code: int, error: str
) -> None:
    launch = f"ends-with-{code}"
    launches.note_intent(launch, "nest_cameras", "here", "log")
    monkeypatch.setenv("TIDEMARK_LAUNCH", launch)

    def run() -> int:
        raise thrown

    with pytest.raises(type(thrown)):
        noting_end(run)
    noted = launches.find(launch)
    assert noted is not None
    assert noted.exit_code == code
    assert error in noted.error
    assert "bug" not in noted.error
