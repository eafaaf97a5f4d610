"""What the processes of the embedded Airflow get to know of the environment of whoever starts it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from include.pipelines import pipeline_names
from include.services import airflow
from include.services.airflow import airflow_environment
from include.services.process import free_port, log_path, start_detached, write_state
from include.settings import REPOSITORY, settings
from include.spark.jars import pyspark_home
from tests.conftest import SetSettings


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_HOME=str(tmp_path), TIDEMARK_DATABASE_URL="postgresql://tidemark:secret@127.0.0.1:5432")


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


def airflow_of(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `./tidemark airflow …` as somebody whose home folder is empty, in the folder of another checkout."""
    other = tmp_path / "staging"
    for name in ("include", "airflow"):
        (other / name).mkdir(parents=True, exist_ok=True)
        (other / name / "__init__.py").write_text("raise ImportError('of another checkout')")
    return subprocess.run(
        [sys.executable, "-P", "-m", "include.cli", "airflow", *arguments],
        env={**os.environ, "HOME": str(tmp_path / "user"), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        cwd=other,
        check=False,
    )


def test_command_works_on_the_embedded_airflow_when_it_was_started_before(tmp_path: Path) -> None:
    write_state("airflow", address="http://127.0.0.1:8080", port=8080, pid=None)
    told = airflow_of(tmp_path, "config", "get-value", "database", "sql_alchemy_conn")
    assert (told.returncode, told.stdout) == (0, "postgresql+psycopg2://tidemark:secret@127.0.0.1:5432/airflow\n")
    assert airflow_of(tmp_path, "no-such-command").returncode == 2
    # Without its settings it makes a database of its own there, and cleans that one.
    assert not (tmp_path / "user" / "airflow").exists()


def test_command_is_refused_when_no_airflow_was_started(tmp_path: Path) -> None:
    told = airflow_of(tmp_path, "db", "clean", "--yes")
    assert (told.returncode, told.stdout) == (64, "")
    assert told.stderr == (
        f"tidemark: no Airflow was ever started by Tidemark in {tmp_path} — ./tidemark up airflow; for an Airflow of "
        "your own, its command airflow in its environment\n"
    )


def test_shell_of_the_database_has_psql_when_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    write_state("airflow", address="http://127.0.0.1:8080", port=8080, pid=None)
    ran: list[Mapping[str, str]] = []
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(airflow.os, "execve", lambda _program, _arguments, environment: ran.append(environment))
    airflow.run_command(["db", "shell"])
    assert shutil.which("psql", path=ran[0]["PATH"])


def test_command_is_named_by_the_verb_when_the_home_has_an_airflow() -> None:
    assert settings().airflow_command() == "airflow"
    write_state("airflow", address="http://127.0.0.1:8080", port=8080, pid=None)
    assert settings().airflow_command() == "./tidemark airflow"


def test_parts_start_when_the_environment_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are installed beside Python name the folder in which they were installed; only Python is there."""
    started: list[list[str]] = []

    class Migrating:
        returncode = 1

    monkeypatch.setattr(airflow.signal, "signal", lambda *_: None)
    monkeypatch.setattr(airflow.subprocess, "run", lambda command, **_: started.append(command) or Migrating())
    assert airflow.serve() == 1
    assert started == [[sys.executable, "-P", "-m", "airflow", "db", "migrate"]]


def test_own_values_hold_when_the_environment_has_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark-3.5")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("TIDEMARK_ARCHIVE_WAIT", "")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://elsewhere:7077")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__API__PORT", "9090")
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    for unset in ("DAGS_FOLDER", "PARALLELISM"):
        monkeypatch.setenv(f"AIRFLOW__CORE__{unset}", "")
    environment = environment_of_process()
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[*]"
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert environment["AIRFLOW__API__PORT"] == "8080"
    assert environment["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert environment["SPARK_HOME"] == str(pyspark_home())
    assert environment["LC_ALL"] == "C.UTF-8"
    assert environment["TIDEMARK_ARCHIVE_WAIT"] == "10m"
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(REPOSITORY / "dags")
    assert environment["AIRFLOW__CORE__PARALLELISM"] == "4"


@pytest.mark.parametrize(("tls", "answer"), [("disable", "."), ("require", "rejected SSL upgrade")])
def test_tls_of_the_database_holds_for_the_sessions_of_airflow_that_do_not_block(
    set_settings: SetSettings, tls: str, answer: str
) -> None:
    """Seen by a server without TLS, which closes every session."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        url = f"postgresql://tidemark:secret@127.0.0.1:{server.getsockname()[1]}?sslmode={tls}&connect_timeout=5"
        set_settings(TIDEMARK_DATABASE_URL=url)

        def serve() -> bytes:
            with server.accept()[0] as session:
                asked = session.recv(1024)
                session.sendall(b"N")
                return asked

        async def ask() -> None:
            engine = create_async_engine(airflow_environment(8080)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"])
            async with engine.connect():
                pass

        server.settimeout(10)
        with ThreadPoolExecutor() as beside:
            asked = beside.submit(serve)
            with pytest.raises(Exception, match=answer):
                asyncio.run(ask())
    # Without TLS the user is named at once.
    assert (b"tidemark" in asked.result()) == (tls == "disable")


def test_triggerer_watches_every_stream_when_as_many_runs_as_may_be_wait_for_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = (
        "from include.airflow.interval_run.order import MOST_RUNS; from airflow.configuration import conf;"
        "print(MOST_RUNS, conf.getint('triggerer', 'capacity'))"
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
