"""The task `build_interval` publishes too, and `publish` starts no second driver for it.

`spark-submit` is a program that prints and ends as a driver would; hook, ledger and files are real.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from include.airflow.interval_run import approval
from include.airflow.interval_run.approval import PublishOperator
from include.airflow.interval_run.build import BuildOperator
from include.airflow.tasks import attempt_of, take_step
from include.errors import ServiceUnreachable, UsageError, ValidationFailed
from include.intervals import steps
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.validation import approvals
from tests.conftest import Home
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register, scheduled_run

pytestmark = pytest.mark.services

NAME = "isp_hits"
FAILED = ExpectationResult(NAME, "expect_set", "isp", "isp is a", False, "x", 3)
WARNED = ExpectationResult(NAME, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
SUBMITTED = "tidemark: isp_hits: validating"
"""What the driver prints."""


def run(operator: Any, **params: object) -> list[str]:
    """Execute a task of a run with these parameters, and return what its log says."""
    of_run = {"params": params, "dag_run": scheduled_run(hour())}
    instance = SimpleNamespace(id="ti", run_id="test", xcom_push=lambda **_: None, get_template_context=lambda: of_run)
    with structlog.testing.capture_logs() as logged:
        operator.execute({"ti": instance, "params": params})
    return [each["event"] for each in logged]


def build(attempt: int) -> Any:
    return BuildOperator(task_id="build_interval", pipeline=NAME, attempt=str(attempt))


def publish(attempt: int) -> Any:
    return PublishOperator(task_id="publish", pipeline=NAME, attempt=str(attempt))


def rejected() -> int:
    """An attempt whose build did not pass."""
    attempt = begin_attempt(NAME)
    note_build(attempt)
    builds.reject(attempts.load_attempt(attempt), Validation(False, NAME, (FAILED,)))
    return attempt


def published() -> int:
    return build_and_register(NAME)


def test_one_driver_takes_both_steps_when_the_interval_is_built(postgres: Home) -> None:
    submitted = build(begin_attempt(NAME)).resolve("client")
    assert (submitted.job, "--publish" in submitted.arguments) == ("build_interval", True)
    assert publish(begin_attempt(NAME)).resolve("client").job == "publish"


@pytest.mark.parametrize("wanted", [True, False])
def test_interval_is_built_with_the_references_of_now_when_the_form_asks_for_them(driver: Path, wanted: bool) -> None:
    attempt = begin_attempt(NAME)
    note_build(attempt)
    driver.write_text("0")
    operator = build(attempt)
    run(operator, new_references=wanted)
    assert ("--new-references" in operator.resolve("client").arguments) is wanted


def test_references_are_not_read_anew_again_when_a_run_that_has_published_is_cleared(driver: Path) -> None:
    driver.write_text("0")
    operator = build(published())
    said = run(operator, new_references=True)
    assert "this run has published with new references: it keeps their content" in said
    assert "--new-references" not in operator.resolve("client").arguments


def test_no_second_driver_is_started_when_the_first_one_has_published(driver: Path) -> None:
    attempt = published()
    driver.write_text("0")
    assert SUBMITTED in run(build(attempt))
    # It would end with an error now.
    driver.write_text("1")
    assert SUBMITTED not in run(publish(attempt))


def test_interval_is_published_anew_when_publish_is_cleared_after_the_attempt_has_ended(driver: Path) -> None:
    attempt = published()
    attempts.close_attempt(attempt, 0)
    driver.write_text("0")
    assert SUBMITTED in run(publish(attempt))


def test_no_second_driver_is_started_when_the_whole_run_was_cleared_and_is_built_again(driver: Path) -> None:
    attempt = published()
    attempts.close_attempt(attempt, 0)
    attempts.resume_attempt(attempt)
    register(attempt, note_build(attempt))
    driver.write_text("1")
    assert SUBMITTED not in run(publish(attempt))


def test_publish_starts_a_driver_when_the_build_is_neither_published_nor_rejected(driver: Path) -> None:
    attempt = begin_attempt(NAME)
    note_build(attempt)
    driver.write_text(str(ServiceUnreachable.exit_code))
    with pytest.raises(AirflowException, match=f"publish of {NAME} ended with exit code 6"):
        run(publish(attempt))


def test_publish_fails_and_build_does_not_when_the_checkpoint_did_not_pass(driver: Path) -> None:
    attempt = rejected()
    driver.write_text(str(ValidationFailed.exit_code))
    assert SUBMITTED in run(build(attempt))
    with pytest.raises(AirflowFailException, match="the checkpoint did not pass"):
        run(publish(attempt))


def test_person_is_asked_by_publish_when_the_first_driver_only_warned(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[dict[str, Any]] = []
    monkeypatch.setattr(approval, "upsert_hitl_detail", lambda **question: questions.append(question))
    attempt = begin_attempt(NAME)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    asked = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, NAME, (WARNED,), question=asked.id))
    driver.write_text(str(ValidationFailed.exit_code))
    run(build(attempt))
    driver.write_text("1")
    with pytest.raises(TaskDeferred):
        run(publish(attempt))
    assert [each["subject"] for each in questions] == [f"isp_hits {hour()}: 1 warning. Register it?"]


@pytest.mark.parametrize("code", [1, 2, 6])
def test_build_fails_when_its_driver_ends_with_what_no_validation_explains(driver: Path, code: int) -> None:
    attempt = begin_attempt(NAME)
    note_build(attempt)
    driver.write_text(str(code))
    with pytest.raises(AirflowException, match=f"build_interval of {NAME} ended with exit code {code}"):
        run(build(attempt))


@pytest.mark.parametrize(("code", "prints"), [(2, "python3: cannot open file"), (127, "tidemark: isp_hits: building")])
def test_build_fails_with_1_when_its_driver_never_started_or_names_no_error(
    driver: Path, code: int, prints: str
) -> None:
    program = driver.with_name("spark-submit")
    program.write_text(f"#!/bin/sh\necho {prints!r}\nexit {code}\n")
    attempt = begin_attempt(NAME)
    note_build(attempt)
    with pytest.raises(AirflowException, match=f"build_interval of {NAME} ended with exit code 1: unexpected"):
        run(build(attempt))


def test_build_fails_when_its_driver_died_after_it_had_published(driver: Path) -> None:
    attempt = published()
    driver.write_text("1")
    with pytest.raises(AirflowException, match="ended with exit code 1"):
        run(build(attempt))


@pytest.mark.parametrize(
    ("pipeline", "number", "run_by"),
    [
        pytest.param("nest_cameras", 3, "airflow test", id="another pipeline's"),
        pytest.param(NAME, 3, "airflow another", id="another hour's"),
        pytest.param(NAME, 3, "ada@host", id="a command's"),
    ],
)
def test_task_submits_nothing_when_the_ledger_gave_its_attempt_s_number_to_another_run(
    driver: Path, pipeline: str, number: int, run_by: str
) -> None:
    attempt = build_and_register(pipeline, hour(number), run_by=run_by)
    driver.write_text("0")
    task = SimpleNamespace(run_id="test")
    of_task = {"ti": task}
    for taken in (
        lambda: run(build(attempt)),
        lambda: run(publish(attempt)),
        lambda: publish(attempt).execute_complete(of_task, {"chosen_options": ["Approve"]}, question=1),
        # As `reconcile` and `announce` begin.
        lambda: take_step(attempt_of, NAME, str(attempt), of_task),
    ):
        with pytest.raises(AirflowFailException, match=f"{run_by} began it for {pipeline} {hour(number)}") as refused:
            taken()
        assert str(refused.value).startswith(f"{NAME}: attempt {attempt} is not of airflow test: ")
        assert "clear pin_ranges with the tasks after it" in str(refused.value)


def test_task_fails_at_once_when_the_ledger_has_no_attempt_of_its_number(driver: Path) -> None:
    driver.write_text("0")
    with pytest.raises(AirflowFailException, match="the ledger has no attempt 2000000000 — was the ledger restored"):
        run(build(2_000_000_000))


def test_attempt_is_neither_submitted_nor_published_when_it_is_another_pipeline_s(postgres: Home) -> None:
    from spark_jobs import publish

    attempt = begin_attempt(NAME)
    for refused in (
        lambda: publish.main(["--pipeline", "nest_cameras", "--attempt", str(attempt)]),
        lambda: steps.submit_both("nest_cameras", attempt),
        lambda: steps.submit("publish", "nest_cameras", attempt),
    ):
        with pytest.raises(UsageError, match=f"is not of nest_cameras: airflow test began it for {NAME} {hour()}"):
            refused()
