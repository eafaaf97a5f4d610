"""What the processes of the embedded Airflow get to know of the environment of whoever starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.pipelines import pipeline_names
from include.services import airflow
from include.services.airflow import airflow_environment
from include.services.process import log_path, start_detached
from include.settings import REPOSITORY, settings
from include.spark.jars import pyspark_home


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://tidemark:secret@127.0.0.1:5432")
    settings.cache_clear()
    yield
    settings.cache_clear()


def environment_of_process() -> dict[str, str]:
    """Start a process as `up` starts Airflow, and return the environment that it finds."""
    command = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    assert start_detached("airflow", command, airflow_environment(8080)).wait(60) == 0
    found: dict[str, str] = json.loads(log_path("airflow").read_text())
    return found


def test_connections_variables_and_secrets_backends_are_kept_when_they_are_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = {
        "AIRFLOW_CONN_OPERATORS_MAIL": "smtp://mail.example.org",
        "AIRFLOW_VAR_REGION": "north",
        "AIRFLOW__SECRETS__BACKEND": "example.Backend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS_CMD": "cat kwargs",
        "AIRFLOW__WORKERS__SECRETS_BACKEND": "example.Backend",
    }
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    environment = environment_of_process()
    assert {name: environment.get(name) for name in theirs} == theirs


def test_parts_start_when_the_environment_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are installed beside Python name the folder in which they were installed; only Python is there."""
    started: list[list[str]] = []

    class Migrating:
        returncode = 1

    monkeypatch.setattr(airflow.signal, "signal", lambda *_: None)
    monkeypatch.setattr(airflow.subprocess, "run", lambda command, **_: started.append(command) or Migrating())
    assert airflow.serve() == 1
    assert started == [[sys.executable, "-m", "airflow", "db", "migrate"]]


def test_own_values_hold_when_the_environment_has_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark-3.5")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("TIDEMARK_ARCHIVE_WAIT", "")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://elsewhere:7077")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__API__PORT", "9090")
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    environment = environment_of_process()
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[*]"
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert environment["AIRFLOW__API__PORT"] == "8080"
    assert environment["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert environment["SPARK_HOME"] == str(pyspark_home())
    assert environment["LC_ALL"] == "C.UTF-8"
    assert environment["TIDEMARK_ARCHIVE_WAIT"] == "10m"


def test_triggerer_watches_every_stream_when_as_many_runs_as_may_be_wait_for_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = (
        "import sys; sys.path.insert(0, 'dags'); import intervals; from airflow.configuration import conf;"
        "print(intervals.MOST_RUNS, conf.getint('triggerer', 'capacity'))"
    )
    monkeypatch.chdir(REPOSITORY)
    told = subprocess.run(
        [sys.executable, "-c", asked], env=airflow_environment(8080), capture_output=True, text=True, check=True
    )
    runs, capacity = map(int, told.stdout.split()[-2:])
    assert capacity >= (runs + 1) * len(pipeline_names())


def test_dags_are_kept_when_a_busy_machine_takes_minutes_to_read_them() -> None:
    asked = (
        "from airflow.configuration import conf; print(*(conf.getfloat(*each) for each in ("
        "('core', 'dagbag_import_timeout'), ('dag_processor', 'dag_file_processor_timeout'),"
        "('dag_processor', 'min_file_process_interval'), ('dag_processor', 'stale_dag_threshold'))))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], env=airflow_environment(8080), capture_output=True, text=True, check=True
    )
    reading, process, between, until_stale = map(float, told.stdout.split()[-4:])
    assert 180 <= reading < process
    # Also when one reading has failed.
    assert until_stale > 2 * between + process
