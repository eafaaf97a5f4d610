"""What SparkSubmitOperator's hook makes of a job, in each deploy mode: no secret is in it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from airflow.sdk.exceptions import AirflowFailException

from include.spark.driver_lines import DriverLines, without_secrets
from include.spark.submission import submission
from tests.conftest import SetSettings
from tests.support.yarn_api import APPLICATION, ended_application, site_of

CANARY = "canary-7d1f"
SECRETS = {
    "TIDEMARK_DATABASE_URL": f"postgresql://tidemark:{CANARY}@127.0.0.1:5432",
    "TIDEMARK_REGISTRY_URL": f"https://tidemark:{CANARY}@127.0.0.1:8081",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    # Not one of our settings: its content is unknown.
    "TIDEMARK_SOMETHING": CANARY,
}
MODES = {
    "local": {"host": "local[2]", "extra": {}},
    "standalone": {"host": "spark://127.0.0.1:7077", "extra": {}},
    "yarn client": {"host": "yarn", "extra": {"deploy-mode": "client"}},
    "yarn cluster": {"host": "yarn", "extra": {"deploy-mode": "cluster"}},
    "k8s client": {"host": "k8s://https://127.0.0.1:6443", "extra": {"deploy-mode": "client"}},
    "k8s": {"host": "k8s://https://127.0.0.1:6443", "extra": {"deploy-mode": "cluster", "namespace": "tidemark"}},
}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, set_settings: SetSettings) -> None:
    set_settings(**SECRETS, TIDEMARK_HOME=str(tmp_path), TIDEMARK_LAKE="file:///srv/lake")


@pytest.mark.parametrize("mode", MODES)
def test_no_secret_is_in_the_command_or_its_log_when_a_job_is_submitted(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from include.airflow.spark import JobOperator

    extra = {"spark-binary": "spark-submit", **MODES[mode]["extra"]}  # type: ignore[dict-item]
    connection = {"conn_type": "spark", "host": MODES[mode]["host"], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    operator.take(submission("publish", "--pipeline", "nest_cameras", "--attempt", "7", name="publish nest_cameras"))
    with caplog.at_level(logging.DEBUG):
        hook = operator._get_hook()
        command = hook._build_spark_submit_command(operator.application)
    assert CANARY not in "\n".join(command)
    assert CANARY not in caplog.text
    assert CANARY not in json.dumps({"env": operator.env_vars, "conf": operator.conf})
    # Settings that are not secret arrive: the hook has them as arguments or in the process's environment.
    assert operator.env_vars is not None
    assert operator.env_vars["TIDEMARK_LAKE"] == "file:///srv/lake"
    if mode in ("yarn cluster", "k8s"):
        assert any(part.endswith("TIDEMARK_LAKE=file:///srv/lake") for part in command)
    if mode in ("local", "standalone", "k8s client"):
        assert hook._env is not None
        assert hook._env["TIDEMARK_LAKE"] == "file:///srv/lake"


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ({"host": "spark://127.0.0.1:7077"}, "local[*]"),
        ({"host": "local[*]"}, "spark://127.0.0.1:7077"),
        ({"host": "k8s://https://127.0.0.1:6443"}, "yarn"),
        # What Airflow makes by itself.
        ({"host": "yarn", "extra": {"queue": "root.default"}}, "local[2]"),
    ],
)
def test_job_is_refused_when_connection_and_settings_name_masters_of_different_kinds(
    connection: dict[str, object], master: str, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    from include.airflow.spark import JobOperator

    set_settings(TIDEMARK_SPARK_MASTER=master)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))
    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    with pytest.raises(AirflowFailException) as refused:
        operator.run_job({})
    assert f"names the master {connection['host']}, TIDEMARK_SPARK_MASTER is {master}" in str(refused.value)


def test_job_is_refused_and_told_how_to_make_the_connection_when_airflow_has_none(
    monkeypatch: pytest.MonkeyPatch,
    set_settings: SetSettings,
) -> None:
    from include.airflow.spark import JobOperator

    set_settings(TIDEMARK_SPARK_MASTER="spark://127.0.0.1:7077")
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    with pytest.raises(AirflowFailException) as refused:
        operator.run_job({})
    assert "Airflow has no connection spark_default" in str(refused.value)
    assert "--conn-type spark --conn-host 'spark://127.0.0.1:7077'" in str(refused.value)


def test_stream_starts_by_the_settings_when_airflow_has_no_connection(
    monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    from include.airflow import streams

    set_settings(TIDEMARK_SPARK_MASTER="spark://127.0.0.1:7077")
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    monkeypatch.setattr(streams.writers, "live_writer", lambda _: None)
    monkeypatch.setattr(streams.launches, "last", lambda _: None)
    launched = SimpleNamespace(id="launch", pid=7, log_place="log")
    monkeypatch.setattr(streams.launching, "launch_driver", lambda *_: launched)
    assert streams.StreamOperator(task_id="stream", pipeline="nest_cameras")._adopt_or_launch() == "launch"


def test_foreign_lines_are_logged_for_debugging_only_when_a_job_runs() -> None:
    from include.airflow.spark import JobOperator

    hook = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")._get_hook()
    with structlog.testing.capture_logs() as logged:
        hook._process_spark_submit_log(iter(["WARNING: Using incubator modules\n", "tidemark: nest_cameras: done\n"]))
        hook._build_spark_submit_command("publish.py")
    # Airflow's logger drops everything below the level INFO.
    assert [(each["log_level"], each["event"]) for each in logged] == [("info", "tidemark: nest_cameras: done")]


def test_secret_is_in_no_line_or_error_when_a_driver_prints_it() -> None:
    from include.airflow.spark import JobOperator

    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    hook = operator._get_hook()
    with structlog.testing.capture_logs() as logged:
        hook._process_spark_submit_log(iter([f"ERROR by {CANARY}\n", f"tidemark: refused: {CANARY}\n"]))
    assert [each["event"] for each in logged] == ["ERROR by ********", "tidemark: refused: ********"]
    assert operator._lines.own == "refused: ********"


@pytest.mark.parametrize("diagnostics", ["User application exited with status 1", f"refused: {CANARY}"])
def test_secret_is_in_no_line_or_error_when_a_driver_on_yarn_prints_it(
    diagnostics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from include.airflow.spark import JobOperator

    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("LONG_TOKEN", f"{CANARY}\nsecond half")
    warning = "10:11:12 WARN HiveConf: {}"
    said = f"{warning.format(CANARY)}\nERROR by {CANARY}\nsecond half\ntidemark: refused: {CANARY}\n"
    with (
        ended_application(diagnostics=diagnostics, stdout=said, stderr=f"java: {CANARY}\n") as address,
        structlog.testing.capture_logs() as logged,
    ):
        (tmp_path / "yarn-site.xml").write_text(site_of(address))
        operator._hook = operator._get_hook()
        operator.poll_until_complete(APPLICATION, {})
    shown = "\n".join([*(each["event"] for each in logged), *operator._lines.reasons(operator._code)])
    assert "ERROR by ********\ntidemark: refused: ********" in shown
    assert warning.format("********") in shown
    assert CANARY not in shown
    assert (operator._lines.own, operator._code) == ("refused: ********", 1)


def test_beginning_of_own_lines_stays_when_a_secret_reads_like_it() -> None:
    text = "by tidemark: no\ntidemark: refused tidemark: x\n"
    for secret in ("tidemark", "tidemark: "):
        masked = without_secrets(text, [secret]).splitlines()
        assert "tidemark" not in masked[0]
        assert masked[1].startswith("tidemark: refused ")
        assert "tidemark" not in masked[1].removeprefix("tidemark: ")


@pytest.mark.parametrize("kind", ["OwnLines", "HandedOver"])
def test_exit_code_keeps_its_meaning_when_a_secret_reads_as_own_lines_begin(
    kind: str, set_settings: SetSettings
) -> None:
    from include.airflow.on_cluster import handing_over

    set_settings(TIDEMARK_DATABASE_URL="postgresql://tidemark:tidemark@127.0.0.1:5432")
    lines = DriverLines()
    getattr(handing_over, kind)(logging.getLogger("hook"), lines).info("tidemark: 3 rows fail; user tidemark")
    assert lines.exit_code(2) == 2
    assert lines.own == "3 rows fail; user ********"
