"""The task `publish` by its exit code: what it says, when it asks a person, and what an answer does.

`spark-submit` is a program that prints and ends as a driver would; hook, ledger and files are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
import structlog
from airflow.sdk.api.datamodels._generated import HITLDetailResponse
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
    ErrorType,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import ErrorResponse

from include import lake
from include.airflow.interval_run import approval
from include.airflow.interval_run import decision as decision_trigger
from include.airflow.interval_run.approval import PublishOperator
from include.airflow.interval_run.decision import DecisionTrigger
from include.intervals.reporting.asking import notify_asked
from include.ledger.alerts import open_alerts
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Approval
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Decision
from tests.conftest import Home
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register, scheduled_run

pytestmark = pytest.mark.services

NAME = "isp_hits"
TASK = uuid4()
WARNED = ExpectationResult(NAME, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
SUBMITTED = "tidemark: isp_hits: validating"
"""What the driver prints."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the question that was passed to Airflow, whose supervisor does not run here."""
    questions: list[dict[str, Any]] = []
    monkeypatch.setattr(approval, "upsert_hitl_detail", lambda **question: questions.append(question))
    return questions


@pytest.fixture
def context() -> dict[str, Any]:
    of_run = {"params": {}, "dag_run": scheduled_run(hour())}
    instance = SimpleNamespace(id="ti", run_id="test", xcom_push=lambda **_: None, get_template_context=lambda: of_run)
    return {"ti": instance}


@pytest.fixture
def built(postgres: Home) -> tuple[int, BuiltRevision]:
    """An attempt whose build waits for a person, and what it built."""
    attempt = begin_attempt(NAME)
    revision = note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, NAME, (WARNED,), question=question.id))
    return attempt, revision


@pytest.fixture
def waiting(built: tuple[int, BuiltRevision]) -> int:
    return built[0]


def publish(attempt: int) -> PublishOperator:
    return PublishOperator(task_id="publish", pipeline=NAME, attempt=str(attempt))


def answer(option: str, reason: str) -> dict[str, Any]:
    user = {"id": "1", "name": "ada"}
    return {"chosen_options": [option], "params_input": {"reason": reason}, "responded_by_user": user}


def test_log_says_what_is_registered_and_nothing_foreign_when_it_passed(driver: Path, context: dict[str, Any]) -> None:
    attempt = build_and_register(NAME)
    # It has ended: `publish` was cleared, and publishes itself.
    attempts.close_attempt(attempt, 0)
    driver.write_text("0")
    with structlog.testing.capture_logs() as logged:
        publish(attempt).execute(context)  # type: ignore[arg-type]
    said = [each["event"] for each in logged]
    assert SUBMITTED in said
    assert not [line for line in said if "HiveConf" in line or "Spark-Submit cmd" in line]


def decision(attempt: int) -> Decision:
    question = approvals.last_of_build(attempts.load_attempt(attempt).build)
    assert question is not None
    assert question.decision is not None
    return question.decision


def question(attempt: int) -> int:
    found = approvals.last_of_build(attempts.load_attempt(attempt).build)
    assert found is not None
    return found.id


def test_person_is_asked_and_approval_registers_when_only_warnings_were_not_met(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    driver.write_text("2")
    operator = publish(waiting)
    with pytest.raises(TaskDeferred) as parked:
        operator.execute(context)  # type: ignore[arg-type]
    assert (parked.value.method_name, parked.value.kwargs) == ("execute_complete", {"question": question(waiting)})
    [shown] = asked
    assert shown["options"] == ["Approve", "Refuse"]
    assert shown["subject"] == f"isp_hits {hour()}: 1 warning. Register it?"
    assert "- `warning: isp_hits: 50 to 294 rows (observed 7, 0 unexpected)`" in shown["body"]
    report = Path(unquote(lake.uri("reports", NAME, f"{hour().label}.html").removeprefix("file://")))
    assert "Not published: waits for approval" in report.read_text()
    driver.write_text("0")
    operator.execute_complete(context, answer("Approve", "a holiday"), **parked.value.kwargs)  # type: ignore[arg-type]
    said = decision(waiting)
    assert (said.approved, said.by, said.reason) == (True, "airflow ada", "a holiday")


@pytest.mark.parametrize("is_noted", [True, False], ids=["the driver failed", "the worker was killed"])
def test_retry_publishes_when_the_driver_died_after_an_approval(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int, is_noted: bool
) -> None:
    driver.write_text("2")
    operator, number = publish(waiting), question(waiting)
    with pytest.raises(TaskDeferred):
        operator.execute(context)  # type: ignore[arg-type]
    approvals.decide(number, approved=True, by="airflow ada", reason="a holiday")
    # What the driver of an approved build does first.
    attempts.resume_attempt(waiting)
    if is_noted:
        driver.write_text("6")
        with pytest.raises(AirflowException, match="ended with exit code 6"):
            operator.execute_complete(context, answer("Approve", "a holiday"), question=number)  # type: ignore[arg-type]
    driver.write_text("0")
    with structlog.testing.capture_logs() as logged:
        publish(waiting).execute(context)  # type: ignore[arg-type]
    assert SUBMITTED in [each["event"] for each in logged]


def test_retry_publishes_when_the_driver_died_after_it_had_registered(
    driver: Path, context: dict[str, Any], built: tuple[int, BuiltRevision]
) -> None:
    attempt, revision = built
    attempts.close_attempt(attempt, 2)
    attempts.resume_attempt(attempt)
    # What follows it, as the Delta view, is not published.
    register(attempt, revision)
    driver.write_text("0")
    with structlog.testing.capture_logs() as logged:
        publish(attempt).execute(context)  # type: ignore[arg-type]
    assert SUBMITTED in [each["event"] for each in logged]


def test_run_fails_for_good_and_nothing_is_submitted_when_it_is_refused(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    driver.write_text("0")
    refuse = answer("Refuse", "rows are missing")
    with pytest.raises(AirflowFailException, match="refused by airflow ada: rows are missing; nothing was registered"):
        publish(waiting).execute_complete(context, refuse, question=question(waiting))  # type: ignore[arg-type]
    assert decision(waiting).approved is False
    validation = attempts.load_attempt(waiting).findings.validation
    assert validation is not None
    assert validation.decision["decision"] == "refused"
    assert asked == []


def test_answer_decides_nothing_when_something_else_is_asked_since(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    driver.write_text("0")
    before, build = question(waiting), attempts.load_attempt(waiting).build
    assert build is not None
    anew = approvals.ask(build, "suite-2", (WARNED,))
    with pytest.raises(AirflowFailException, match=f"question {before} is no longer asked"):
        publish(waiting).execute_complete(context, answer("Approve", "yes"), question=before)  # type: ignore[arg-type]
    assert approvals.last_of_build(build) == anew
    assert anew.decision is None


def test_task_fails_and_asks_nobody_when_an_approval_was_of_an_older_suite(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    # A driver that finds another suite asks again, and ends with 2.
    driver.write_text("2")
    before, spec = question(waiting), attempts.load_attempt(waiting)
    ask_anew = Validation(False, NAME, (WARNED,), question=before + 1)
    builds.hold(spec, ask_anew)
    with pytest.raises(AirflowFailException, match=r"1 warning in .*, nothing was registered yet"):
        publish(waiting).execute_complete(context, answer("Approve", "yes"), question=before)  # type: ignore[arg-type]
    assert asked == []


def test_answer_agrees_with_the_command_when_that_was_faster(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    driver.write_text("0")
    number = question(waiting)
    approvals.decide(number, approved=True, by="bob@host", reason="a holiday")
    publish(waiting).execute_complete(context, answer("Approve", "yes"), question=number)  # type: ignore[arg-type]
    assert decision(waiting).by == "bob@host"
    with pytest.raises(AirflowFailException, match="it was approved by bob@host before: a holiday"):
        publish(waiting).execute_complete(context, answer("Refuse", "no"), question=number)  # type: ignore[arg-type]


class Kept:
    """What Airflow's supervisor, which does not run here, has of a task's question; None: it does not answer."""

    def __init__(self) -> None:
        self.response: HITLDetailResponse | None = HITLDetailResponse(
            response_received=False, responded_at=None, chosen_options=None
        )

    def of(self, ti_id: UUID) -> HITLDetailResponse:
        assert ti_id == TASK
        if self.response is None:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        return self.response


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    airflow = Kept()
    monkeypatch.setattr(decision_trigger, "get_hitl_detail_content_detail", airflow.of)
    return airflow


def test_question_is_looked_at_more_rarely_the_longer_it_waits() -> None:
    trigger = DecisionTrigger(1)
    assert [trigger.pause(waited) for waited in (0, 60, 300, 3600)] == [10, 10, 30, 60]


async def look_at(number: int) -> dict[str, Any] | None:
    """Return the event of a trigger that looks at a question once; None while it has none."""
    trigger = DecisionTrigger(number, poll_seconds=0.1)
    # As the triggerer does.
    trigger.task_instance = SimpleNamespace(id=TASK, task_id="publish")  # type: ignore[assignment]
    assert trigger.serialize()[1]["question"] == number
    try:
        async with asyncio.timeout(2):
            return (await anext(aiter(trigger.run()))).payload
    except TimeoutError:
        return None


@pytest.fixture
def elsewhere(waiting: int, kept: Kept) -> Callable[[], dict[str, Any] | None]:
    """Return the event of a trigger that looks at the last question once; None while it has none."""
    return lambda: asyncio.run(look_at(question(waiting)))


def test_run_goes_on_without_another_driver_when_the_command_has_approved_and_published(
    driver: Path,
    context: dict[str, Any],
    built: tuple[int, BuiltRevision],
    elsewhere: Callable[[], dict[str, Any] | None],
) -> None:
    assert elsewhere() is None
    waiting, revision = built
    number = question(waiting)
    approvals.decide(number, approved=True, by="bob@host", reason="a holiday")
    # Whoever approved it is publishing.
    assert elsewhere() is None
    register(waiting, revision)
    event = elsewhere()
    assert event is not None
    # Were another driver started, the task would fail.
    driver.write_text("1")
    publish(waiting).execute_complete(context, event, question=number)  # type: ignore[arg-type]


def test_run_publishes_and_asks_nobody_when_the_command_has_approved_before_it_asks(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    approvals.decide(question(waiting), approved=True, by="bob@host", reason="a holiday")
    # Whoever approved it has not begun to publish: the driver finds the approval, or waits for that.
    driver.write_text("0")
    with structlog.testing.capture_logs() as logged:
        publish(waiting).execute(context)  # type: ignore[arg-type]
    assert SUBMITTED in [each["event"] for each in logged]
    assert asked == []


def test_run_fails_as_refused_when_the_command_has_refused_before_it_asks(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]], waiting: int
) -> None:
    approvals.decide(question(waiting), approved=False, by="bob@host", reason="rows are missing")
    # Were a driver started, the task would not say who refused it.
    driver.write_text("1")
    with pytest.raises(AirflowFailException, match="refused by bob@host: rows are missing; nothing was registered"):
        publish(waiting).execute(context)  # type: ignore[arg-type]
    assert asked == []


def test_answer_counts_when_it_came_before_the_task_was_deferred(
    driver: Path, context: dict[str, Any], waiting: int, kept: Kept, elsewhere: Callable[[], dict[str, Any] | None]
) -> None:
    assert elsewhere() is None
    kept.response = None
    assert elsewhere() is None, "it waits while Airflow does not answer"
    given = answer("Approve", "a holiday")
    kept.response = HITLDetailResponse(response_received=True, responded_at=datetime.now(UTC), **given)
    event = elsewhere()
    assert event == given
    driver.write_text("0")
    publish(waiting).execute_complete(context, event, question=question(waiting))  # type: ignore[arg-type]
    said = decision(waiting)
    assert (said.approved, said.by, said.reason) == (True, "airflow ada", "a holiday")


@pytest.fixture
def asked_twice(built: tuple[int, BuiltRevision]) -> tuple[int, int]:
    """An attempt and its first question: another suite asked again, and the build is published by that approval."""
    attempt, revision = built
    first, build = question(attempt), attempts.load_attempt(attempt).build
    assert build is not None
    for suite in ("suite-1", "suite-2"):
        asked = approvals.ask(build, suite, (WARNED,))
        approvals.decide(asked.id, approved=True, by="bob@host", reason="a holiday")
    register(attempt, revision)
    return attempt, first


def test_run_goes_on_when_the_build_was_published_by_a_later_question_s_approval(
    driver: Path, context: dict[str, Any], kept: Kept, asked_twice: tuple[int, int]
) -> None:
    attempt, first = asked_twice
    event = asyncio.run(look_at(first))
    assert event is not None
    # Were another driver started, the task would fail.
    driver.write_text("1")
    publish(attempt).execute_complete(context, event, question=first)  # type: ignore[arg-type]
    publish(attempt).execute_complete(context, answer("Approve", "yes"), question=first)  # type: ignore[arg-type]


def test_refusal_is_told_that_it_comes_too_late_when_the_build_was_published_by_a_later_question_s_approval(
    driver: Path, context: dict[str, Any], asked_twice: tuple[int, int]
) -> None:
    attempt, first = asked_twice
    with pytest.raises(AirflowFailException, match=f"question {first} is no longer asked: .*registered by a later"):
        publish(attempt).execute_complete(context, answer("Refuse", "no"), question=first)  # type: ignore[arg-type]


def test_run_publishes_when_the_command_has_approved_and_ended_before_it_did(
    driver: Path, context: dict[str, Any], waiting: int, elsewhere: Callable[[], dict[str, Any] | None]
) -> None:
    number = question(waiting)
    approvals.decide(number, approved=True, by="bob@host", reason="a holiday")
    with session() as ledger:
        ledger.get_one(Approval, number).decided_at = datetime.now(UTC) - timedelta(minutes=11)
    event = elsewhere()
    assert event is not None
    driver.write_text("1")
    with pytest.raises(AirflowException, match="publish of isp_hits ended with exit code 1"):
        publish(waiting).execute_complete(context, event, question=number)  # type: ignore[arg-type]


def test_run_fails_for_good_when_the_command_has_refused(
    context: dict[str, Any], waiting: int, elsewhere: Callable[[], dict[str, Any] | None]
) -> None:
    number = question(waiting)
    approvals.decide(number, approved=False, by="bob@host", reason="rows are missing")
    event = elsewhere()
    assert event is not None
    with pytest.raises(AirflowFailException, match="refused by bob@host: rows are missing; nothing was registered"):
        publish(waiting).execute_complete(context, event, question=number)  # type: ignore[arg-type]


def test_run_ends_when_its_interval_was_built_again_while_it_waited(
    context: dict[str, Any], waiting: int, elsewhere: Callable[[], dict[str, Any] | None]
) -> None:
    number = question(waiting)
    note_build(begin_attempt(NAME))
    event = elsewhere()
    assert event is not None
    with pytest.raises(AirflowSkipException, match=f"question {number} is no longer asked: the interval was built"):
        publish(waiting).execute_complete(context, event, question=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["Approve", "Refuse"])
def test_answer_decides_nothing_when_the_interval_was_built_again_and_the_trigger_has_not_noticed(
    driver: Path, context: dict[str, Any], waiting: int, option: str
) -> None:
    driver.write_text("0")
    number = question(waiting)
    note_build(begin_attempt(NAME))
    with pytest.raises(AirflowSkipException, match=f"question {number} is no longer asked: the interval was built"):
        publish(waiting).execute_complete(context, answer(option, "yes"), question=number)  # type: ignore[arg-type]
    assert approvals.question(number).decision is None


def test_run_fails_for_good_and_the_alert_is_over_when_its_interval_was_pinned_again_and_nobody_builds_it(
    context: dict[str, Any],
    waiting: int,
    elsewhere: Callable[[], dict[str, Any] | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("include.alerts.configured_channels", dict)
    number, spec = question(waiting), attempts.load_attempt(waiting)
    notify_asked(spec)
    assert pins.replace_ranges(spec.pinned, spec.pinned.ranges, repinned_by="test") is not None
    event = elsewhere()
    assert event is not None
    with pytest.raises(AirflowFailException, match=f"question {number} is no longer asked: .*; clear build_interval"):
        publish(waiting).execute_complete(context, event, question=number)  # type: ignore[arg-type]
    assert open_alerts(f"approval/{NAME}/") == []


def test_nobody_is_asked_when_an_expectation_failed(
    driver: Path, context: dict[str, Any], asked: list[dict[str, Any]]
) -> None:
    attempt = begin_attempt(NAME)
    note_build(attempt)
    failed = ExpectationResult(NAME, "expect_set", "isp", "isp is a", False, "x", 3)
    builds.reject(attempts.load_attempt(attempt), Validation(False, NAME, (failed, WARNED)))
    driver.write_text("2")
    with pytest.raises(AirflowFailException, match="the checkpoint did not pass"):
        publish(attempt).execute(context)  # type: ignore[arg-type]
    assert asked == []
