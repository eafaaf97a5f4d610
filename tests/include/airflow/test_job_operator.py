"""The tasks that start Spark, by their exit code: what their log says, and what a failure means.

`spark-submit` is a program that prints and ends as a driver would; hook, ledger and files are real.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from include.airflow.interval_run.links import STREAM_LINKS
from include.airflow.notifier import AlertNotifier
from include.airflow.spark import JobOperator
from include.ledger.alerts import open_alerts
from include.ledger.database import session
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.models import Attempt
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, scheduled_run

pytestmark = pytest.mark.services

NAME = "isp_hits"
FAILED = ExpectationResult(NAME, "expect_set", "isp", "isp is a", False, "x", 3)


def publish(attempt: int) -> None:
    """Run the task, which links to its interval."""
    of_run = {"params": {}, "dag_run": scheduled_run(hour())}
    links: dict[str, str] = {}
    instance = SimpleNamespace(
        run_id="test", xcom_push=lambda key, value: links.update({key: value}), get_template_context=lambda: of_run
    )
    operator: Any = JobOperator(task_id="publish", job="publish", pipeline=NAME, attempt=str(attempt))
    operator.execute({"ti": instance})
    assert links["_link_IntervalLink"].endswith("isp_hits/2026-11-20T05.html")


def test_log_shows_the_driver_s_lines_and_findings_when_a_job_ran(
    driver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = build_and_register(NAME)
    driver.write_text("0")
    with structlog.testing.capture_logs() as logged, caplog.at_level("INFO"):
        publish(attempt)
    said = [each["event"] for each in logged]
    assert "tidemark: isp_hits: validating" in said
    assert not [line for line in said if "HiveConf" in line or "Spark-Submit cmd" in line]
    assert f"isp_hits {hour()}: 0 of 0 expectations are met, 1 table partitions are registered" in caplog.messages


def test_missed_expectations_are_told_when_the_checkpoint_did_not_pass(
    driver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = begin_attempt(NAME)
    note_build(attempt)
    builds.reject(attempts.load_attempt(attempt), Validation(False, NAME, (FAILED,)))
    driver.write_text("2")
    with pytest.raises(AirflowFailException, match="the checkpoint did not pass"):
        publish(attempt)
    assert caplog.messages[0] == f"isp_hits {hour()}: FAILED, 1 expectation; nothing was registered"
    assert caplog.messages[1] == "FAILED: isp_hits: isp is a (observed x, 3 unexpected)"


def test_warnings_of_spark_are_told_when_the_driver_died_without_naming_an_error(
    driver: Path,
) -> None:
    attempt = begin_attempt(NAME)
    driver.write_text("1")
    with (
        structlog.testing.capture_logs() as logged,
        pytest.raises(AirflowException, match="ended with exit code 1: unexpected"),
    ):
        publish(attempt)
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        assert (row.exit_code, row.ended_at) == (1, None), "nobody announced it"
    assert any("HiveConf" in each["event"] for each in logged if each["log_level"] == "error")


def test_alert_names_offsets_and_remedy_when_the_driver_s_last_line_did(driver: Path) -> None:
    attempt = begin_attempt(NAME)
    error = "hits-0 [10, 90) is below the earliest retained offset 95"
    remedy = "read what was archived of them instead: --source archive"
    program = driver.with_name("spark-submit")
    program.write_text(
        program.read_text().replace("validating", f'validating"\necho "tidemark: isp_hits: {error} — {remedy}')
    )
    driver.write_text("4")
    with pytest.raises(AirflowFailException, match="offsets are lost, or the topic was recreated") as raised:
        publish(attempt)
    failed: Any = {
        "ti": SimpleNamespace(dag_id="interval__isp_hits", run_id="r", task_id="publish"),
        "exception": raised.value,
    }
    AlertNotifier(NAME).notify(failed)
    (told,) = open_alerts("task/interval__isp_hits/r/")
    assert error in told.what
    assert told.todo == remedy


def test_links_of_a_stream_are_empty_when_airflow_s_address_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.intervals.reporting.addresses.airflow_address", lambda: "")
    task = SimpleNamespace(pipeline=NAME)
    assert [link.get_link(task, ti_key=None) for link in STREAM_LINKS] == ["", "", ""]
