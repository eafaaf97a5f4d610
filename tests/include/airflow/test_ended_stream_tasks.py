"""What becomes of a stream's driver when its task ends in Airflow's database; no service is needed."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from include.airflow import streams
from include.airflow.driver import launching, liveness

TASK = SimpleNamespace(dag_id="stream__nest_cameras", task_id="stream", run_id="scheduled__1")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches of the drivers that were stopped."""
    launches: list[str] = []
    monkeypatch.setattr(launching, "stop_driver", lambda _pipeline, launch: launches.append(launch))
    return launches


def end(task: Any = TASK) -> None:
    trigger = streams.StreamTrigger("nest_cameras", "launch-1")
    trigger.task_instance = task
    asyncio.run(trigger.on_kill())


def test_trigger_ends_when_it_is_cancelled_in_the_moment_in_which_a_look_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async def watch() -> None:
        async for _ in streams.StreamTrigger("nest_cameras", "launch-1", poll_seconds=0).run():
            pass

    async def end_while_it_watches() -> None:
        watching = asyncio.create_task(watch())

        async def answer(*_: object) -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                watching.cancel()
            elif looks == 3:
                raise AssertionError("it watches on")

        monkeypatch.setattr(asyncio, "to_thread", answer)
        await watching

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(end_while_it_watches())
    assert looks == 1


def test_driver_goes_on_when_its_task_was_cleaned_from_airflow_s_database(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for left in ({}, {TASK.run_id: {"another": "running"}}):
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda _dag, left=left, **_: left)
        end()
    assert stopped == []


def test_driver_goes_on_when_another_triggerer_has_taken_over_its_task(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", lambda *_, **__: {TASK.run_id: {TASK.task_id: "deferred"}}
    )
    end()
    assert stopped == []


@pytest.mark.parametrize("state", ["failed", "success", "queued", None])
def test_driver_is_stopped_when_a_person_ends_or_clears_its_task(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    asked: list[object] = []

    def states(*of: object, **which: object) -> dict[str, dict[str, str | None]]:
        asked.append((of, which))
        return {TASK.run_id: {TASK.task_id: state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    end()
    assert stopped == ["launch-1"]
    assert asked == [((TASK.dag_id,), {"task_ids": [TASK.task_id], "run_ids": [TASK.run_id]})]


@pytest.mark.parametrize(
    "error",
    [
        AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)),
        ConnectionRefusedError("the API server is down"),
        TimeoutError("the API server is slow"),
    ],
    ids=["told", "no connection", "timeout"],
)
def test_driver_is_stopped_when_airflow_does_not_tell_its_task(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", refuse)
    end()
    end(None)
    assert stopped == ["launch-1"] * 2


def test_driver_is_stopped_in_airflow_s_time_when_airflow_answers_too_late(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow gives up ending a task after half a minute, and leaves what was not stopped until then."""
    ended = threading.Event()

    def answer_late(*_: object, **__: object) -> dict[str, dict[str, str]]:
        assert ended.wait(30)
        return {}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", answer_late)
    monkeypatch.setattr(streams, "_ANSWER_WITHIN", 0.1)
    monkeypatch.setattr(launching, "stop_driver", lambda _pipeline, launch: (stopped.append(launch), ended.set()))
    end()
    assert stopped == ["launch-1"]


@pytest.mark.parametrize(("application", "left"), [(None, ["spark-submit"]), ("app_1", ["spark-submit", "app_1"])])
def test_no_driver_is_left_on_yarn_when_its_task_is_ended_while_it_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, application: str | None, left: list[str]
) -> None:
    operator = streams.StreamOperator(task_id="stream", pipeline="nest_cameras")
    ended: list[str] = []

    def end_submission() -> None:
        # It would ask the command `yarn` to end the application, which need not be here.
        assert hook._yarn_application_id is None
        ended.append("spark-submit")

    hook = SimpleNamespace(_is_yarn_cluster_mode=True, _yarn_application_id=application, on_kill=end_submission)
    monkeypatch.setattr(streams.writers, "live_writer", lambda _: None)
    monkeypatch.setattr(streams.launches, "last", lambda _: None)
    monkeypatch.setattr(streams, "has_connection", lambda _: False)
    monkeypatch.setattr(streams.yarn, "resource_manager", lambda: "http://rm:8088")
    monkeypatch.setattr(streams.yarn, "kill", lambda _, application: ended.append(application))
    monkeypatch.setattr(operator, "_get_hook", lambda: hook)
    monkeypatch.setattr(streams.applications, "launch", lambda *_: operator.on_kill())
    with pytest.raises(AirflowException, match="was ended"):
        operator._adopt_or_launch()
    assert ended == left


def test_driver_is_looked_at_again_when_the_ledger_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    looks = iter((answers.wait, lambda _: {"event": "died"}))
    monkeypatch.setattr(streams, "_UNANSWERED", 0.2)
    monkeypatch.setattr(liveness, "look_at", lambda *_: next(looks)(10))

    async def event_of_trigger() -> object:
        event = await anext(streams.StreamTrigger("nest_cameras", "launch-1", poll_seconds=0.1).run())
        assert not answers.is_set()
        answers.set()
        return event.payload

    assert asyncio.run(asyncio.wait_for(event_of_trigger(), 5)) == {"event": "died"}
