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


def test_driver_on_yarn_runs_in_the_ledger_when_its_task_was_ended_before_its_application_was_known(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches.note_intent("came-up", "nest_cameras", launches.YARN, "")
    launches.note_end("came-up", 0)
    monkeypatch.setenv("TIDEMARK_LAUNCH", "came-up")
    monkeypatch.setenv("CONTAINER_ID", "container_1700000000000_0001_01_000001")
    seen: list[launches.Launch | None] = []

    def run() -> int:
        seen.append(launches.find("came-up"))
        return 6

    assert noting_end(run) == 6
    (running,), ended = seen, launches.find("came-up")
    assert running is not None
    assert (running.application, running.exit_code, running.ended_at) == ("application_1700000000000_0001", None, None)
    assert ended is not None
    assert ended.exit_code == 6
