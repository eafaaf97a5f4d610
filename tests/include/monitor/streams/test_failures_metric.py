"""The metric of failures in a row, and the page's list of starts: the driver that is running has not failed."""

from __future__ import annotations

import socket
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from include.ledger.database import session
from include.ledger.models import StreamLaunch
from include.ledger.streams import launches, writers
from include.monitor.streams.driver_log import driver_log
from include.monitor.streams.metrics import metrics_text
from include.monitor.streams.page import _logged, _restarts
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

NAME = "tidemark_stream_failures_in_a_row"


def failures(pipeline: str) -> float:
    """The metric's value."""
    text = metrics_text([replace(load_pipeline("isp_hits"), name=pipeline)]).decode()
    [family] = [each for each in text_string_to_metric_families(text) if each.name == NAME]
    [sample] = family.samples
    return float(sample.value)


def launch(pipeline: str, exit_code: int | None = None, host: str = socket.gethostname()) -> str:
    made = uuid.uuid4().hex
    launches.note_intent(made, pipeline, host, "/nowhere")
    if exit_code is not None:
        launches.note_end(made, exit_code)
    return made


def put_back(launched: str, by: timedelta) -> None:
    with session() as ledger:
        earlier = {StreamLaunch.launched_at: StreamLaunch.launched_at - by}
        ledger.execute(update(StreamLaunch).where(StreamLaunch.id == launched).values(earlier))


def test_metric_is_0_when_a_healthy_stream_was_just_launched(postgres: Home) -> None:
    assert failures("f_healthy") == 0
    running = launch("f_healthy")
    assert failures("f_healthy") == 0
    with held_lease("f_healthy"):
        put_back(running, timedelta(minutes=20))
        assert failures("f_healthy") == 0


def test_metric_counts_the_failures_before_when_a_third_driver_runs(postgres: Home) -> None:
    for _ in range(2):
        launch("f_third", 6)
    running = launch("f_third")
    assert failures("f_third") == 2
    with held_lease("f_third"):
        put_back(running, timedelta(minutes=20))
        assert failures("f_third") == 2
        # Once it has run for an hour, they are over.
        put_back(running, timedelta(minutes=50))
        assert failures("f_third") == 0


def test_metric_counts_each_failure_when_the_third_has_ended(postgres: Home) -> None:
    for code in (6, 4, 6):
        launch("f_three", code)
    assert failures("f_three") == 3


def test_metric_counts_the_newest_launch_when_it_was_killed_without_a_word(postgres: Home) -> None:
    killed = launch("f_killed")
    put_back(killed, timedelta(minutes=10))
    assert failures("f_killed") == 1


def restarts(pipeline: str) -> list[tuple[str, bool]]:
    """What the page says of each start, and whether it counts as failed."""
    shown = _restarts(launches.recent(pipeline, 10), writers.live_writer(pipeline), datetime.now(UTC))
    return [(each.reason, each.is_failure) for each in shown]


def test_killed_launch_has_failed_when_a_driver_that_a_person_started_holds_the_lease(postgres: Home) -> None:
    pipeline = "f_by_hand"
    killed = launch(pipeline, host="another")
    assert restarts(pipeline) == [("starts", False)]
    put_back(killed, timedelta(minutes=10))
    with held_lease(pipeline):
        words = "it reported no exit code: killed, or it ended before its first line"
        assert restarts(pipeline) == [(f"{words}; another driver runs", True)]
        assert failures(pipeline) == 1
    assert restarts(pipeline) == [(words, True)]


def test_page_says_why_the_newest_driver_could_not_be_submitted(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = "f_unsubmitted"
    monkeypatch.setenv("OF_A_TOKEN", "canary-7d1e")
    running = launch(pipeline)
    launches.note_unsubmitted("u" * 32, pipeline, 1, "No space left on device: tmp canary-7d1e")
    refused = ("could not be submitted", True)
    assert restarts(pipeline) == [refused, ("starts", False)]
    assert failures(pipeline) == 2
    with held_lease(pipeline):
        put_back(running, timedelta(minutes=10))
        assert restarts(pipeline) == [refused, ("runs", False)]
        # It runs, and so has not failed, whatever came after it; before it there was no other.
        assert failures(pipeline) == 0
        recent = launches.recent(pipeline, 2)
        assert [_logged(recent, writers.live_writer(pipeline)), _logged(recent, None)] == [recent[1], recent[0]]
    shown = driver_log(launches.recent(pipeline, 1)[0])
    assert (shown.path, shown.lines) == ("", ())
    assert shown.note == "The newest driver could not be submitted: No space left on device: tmp ********"


def test_launch_runs_when_its_driver_holds_the_lease(postgres: Home) -> None:
    pipeline = "f_launched"
    running = launch(pipeline)
    with held_lease(pipeline):
        put_back(running, timedelta(minutes=10))
        assert restarts(pipeline) == [("runs", False)]
