"""A driver whose query hangs inside a micro-batch while its heartbeat goes on: told as stalled, and started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from include.airflow import streams
from include.airflow.driver.launching import launch_driver, stop_driver
from include.ledger.streams import launches, writers
from include.ledger.streams.restarts import STALLED_AT_START
from tests.conftest import Home, settings_of, wait_for
from tests.faults.conftest import Rig
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow]

NAME = "nest_cameras"


@pytest.fixture
def in_this_process(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A process that watches streams, like Airflow's triggerer, but looks often and loses patience soon."""
    monkeypatch.setattr(streams, "_LOOK_AT_PROGRESS", 1.0)
    monkeypatch.setattr(streams, "patience_after", lambda stalls: timedelta(seconds=10) * 2**stalls)
    with settings_of(rig.home):
        yield rig.home


def watch(launch: str) -> dict[str, Any]:
    """Return the event of Airflow's trigger about a driver."""

    async def first() -> dict[str, Any]:
        event = await anext(streams.StreamTrigger(NAME, launch, poll_seconds=0.5).run())
        payload: dict[str, Any] = event.payload
        return payload

    return asyncio.run(asyncio.wait_for(first(), 300))


def test_stream_is_told_as_stalled_and_started_again_when_its_driver_hangs_in_a_micro_batch(
    rig: Rig, in_this_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(300)
    monkeypatch.setenv("TIDEMARK_HANG_AT", "landing_written")
    launched = launch_driver(NAME)
    monkeypatch.delenv("TIDEMARK_HANG_AT")
    process = psutil.Process(launched.pid)
    try:
        wait_for("its lease", lambda: writers.live_writer(NAME))
        assert watch(launched.id) == {"event": "stalled", "query": "archive"}
        # Judged only by its heartbeat, it would count as healthy for ever.
        live = writers.live_writer(NAME)
        assert live is not None
        assert live.renewed_at > live.acquired_at
        operator = streams.StreamOperator(task_id="stream", pipeline=NAME)
        context: Any = {"ti": SimpleNamespace(dag_id=f"stream__{NAME}", run_id="a run", task_id="stream")}
        with pytest.raises(Exception, match="is stalled: input waits for its query archive"):
            operator.execute_complete(context, {"event": "stalled", "query": "archive"}, launched.id)
        wait_for("the driver's end", lambda: not process.is_running(), 60)
    finally:
        if process.is_running():
            process.kill()
    noted = launches.find(launched.id)
    assert noted is not None
    assert noted.ended_for.startswith(STALLED_AT_START)
    [alert] = [json.loads(each.value or b"") for each in audit.read_topic(rig.home.kafka, "tidemark-alerts").values()]
    assert "it is stopped and started again" in alert["error"]
    assert rig.committed() == 0

    # As Airflow's next run does it.
    again = launch_driver(NAME)
    wait_for("the records", lambda: rig.committed() == rig.produced)
    stop_driver(NAME, again.id)
    rig.catch_up()
    rig.audit()
