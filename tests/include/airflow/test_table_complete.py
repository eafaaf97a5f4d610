"""The sensor that waits for complete tables, and the trigger that looks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.triggers.base import TriggerEvent

from include.airflow.sensors.table_complete import CompleteTrigger, TableComplete
from include.errors import UsageError
from include.ledger.completeness import Completeness, Open
from include.ledger.completeness.of_table import completeness_of_table
from include.pipelines import load_pipeline
from tests.conftest import Home, settings_of
from tests.support.attempts import begin_attempt, hour, note_build, register

pytestmark = [pytest.mark.services]

TABLE = "nest_cameras_hourly_counts"
PIPELINE = "nest_cameras"


@pytest.fixture(scope="module")
def first_hour(postgres: Home) -> Home:
    """One registered hour, and one that is only pinned."""
    build(0)
    begin_attempt(PIPELINE, hour(1))
    return postgres


def build(number: int, *tables: str) -> None:
    """Register an hour as code builds it that declares these tables; by default those of the pipeline."""
    attempt = begin_attempt(PIPELINE, hour(number))
    columns: dict[str, dict[str, str]] = {name: {} for name in tables or load_pipeline(PIPELINE).tables}
    register(attempt, note_build(attempt, columns=columns))


def sensor(**options: Any) -> TableComplete:
    return TableComplete(task_id="wait", table=f"lake.{TABLE}", **options)


async def event_of(trigger: CompleteTrigger) -> TriggerEvent:
    return await anext(aiter(trigger.run()))


def test_sensor_succeeds_at_once_when_the_table_is_complete(first_hour: Home) -> None:
    told = sensor(until=hour(0).to_time).execute({})
    assert (told["table"], told["until"]) == (TABLE, "2026-11-20T06:00:00Z")
    assert told["waits_for"]["state"] == "pinned"
    # As Airflow renders the end of a data interval.
    assert sensor(until="2026-11-20 06:00:00+00:00").execute({}) == told


def test_sensor_defers_to_the_trigger_when_the_table_is_not(first_hour: Home) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(until=hour(1).to_time, since=hour(0).from_time, poll_seconds=0.2).execute({})
    trigger = deferred.value.trigger
    assert isinstance(trigger, CompleteTrigger)
    path, arguments = trigger.serialize()
    assert path == "include.airflow.sensors.table_complete.CompleteTrigger"
    assert arguments == {
        "pipeline": PIPELINE, "until": "2026-11-20T07:00:00Z", "since": "2026-11-20T05:00:00Z", "poll_seconds": 0.2,
        "table": TABLE,
    }  # fmt: skip


def test_trigger_fires_when_the_hole_is_closed_also_after_the_ledger_was_away(first_hour: Home) -> None:
    trigger = CompleteTrigger(PIPELINE, "2026-11-20T07:00:00Z", poll_seconds=0.1)

    async def wait() -> TriggerEvent:
        with settings_of(first_hour, TIDEMARK_DATABASE_URL="postgresql://nobody:x@127.0.0.1:1"):
            waiting = asyncio.create_task(event_of(trigger))
            done, _ = await asyncio.wait([waiting], timeout=1)
            assert not done
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        await asyncio.to_thread(build, 1)
        return await asyncio.wait_for(waiting, timeout=30)

    assert asyncio.run(wait()).payload["until"] == "2026-11-20T07:00:00Z"


def test_sensor_waits_for_intervals_that_were_built_before_the_table_was_declared(first_hour: Home) -> None:
    build(1)
    build(2, PIPELINE)
    build(3)
    moments = [hour(number).from_time for number in range(5)]
    # Of the hours before nothing is in the table, however complete its pipeline is.
    assert completeness_of_table(PIPELINE, TABLE) == Completeness(
        PIPELINE, moments[3], moments[4], None, begins=moments[3]
    )
    assert sensor(until=moments[4]).execute({})["until"] == "2026-11-20T09:00:00Z"
    assert completeness_of_table(PIPELINE, PIPELINE).complete_from == moments[0]
    for begin, until in ((None, moments[2]), (moments[0], moments[4]), (moments[2], moments[4])):
        with pytest.raises(TaskDeferred):
            sensor(until=until, since=begin or "").execute({})
    assert completeness_of_table(PIPELINE, TABLE, moments[0]) == Completeness(
        PIPELINE, moments[0], moments[2], Open("built without it", moments[2], moments[3])
    )
    assert sensor(until=moments[4], since=moments[3]).execute({})["from"] == "2026-11-20T08:00:00Z"

    build(2)
    assert sensor(until=moments[4], since=moments[0]).execute({})["until"] == "2026-11-20T09:00:00Z"
    assert completeness_of_table(PIPELINE, TABLE).complete_from == moments[0]


def test_table_that_no_interval_was_built_with_is_complete_until_no_time(first_hour: Home) -> None:
    assert completeness_of_table(PIPELINE, "nest_cameras_new").complete_until is None
    assert completeness_of_table(PIPELINE, "nest_cameras_new", hour(0).from_time).complete_until is None


def test_table_that_nobody_declares_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(UsageError, match="unknown table 'nest_camera'"):
        TableComplete(task_id="wait", table="lake.nest_camera")


def test_sensor_fails_without_a_retry_when_its_time_is_not_a_time(first_hour: Home) -> None:
    with pytest.raises(AirflowFailException, match="not a time"):
        sensor(until="yesterday").execute({})
