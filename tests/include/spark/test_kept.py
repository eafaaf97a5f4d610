"""Which submissions use the JVM that stays; `tests/include/services/spark/test_jvm.py` runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from include.processes import ProcessIdentity
from include.settings import settings
from include.spark import kept
from include.spark.submission import OWN_SPARK_SUBMIT, driver_jars, submission
from tests.conftest import SetSettings

Change = Callable[[pytest.MonkeyPatch, Path], None]


@pytest.fixture
def home(tmp_path: Path, set_settings: SetSettings) -> Path:
    """A home in which this process is the keeper of a JVM."""
    set_settings(TIDEMARK_HOME=str(tmp_path))
    services = tmp_path / "services"
    services.mkdir()
    state = {
        "pid": os.getpid(),
        "process": str(ProcessIdentity.of(os.getpid())),
        "key": kept.key(settings()),
        "cwd": str(Path.cwd()),
        "jars": [str(jar) for jar in driver_jars(None, delta=True)],
    }
    (services / "spark.json").write_text(json.dumps(state))
    kept.gateway_file(settings()).write_text("{}")
    return tmp_path


def test_statement_has_a_jvm_of_its_own_when_its_relative_paths_begin_elsewhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program("run_sql") == kept.STAND_IN
    monkeypatch.chdir(home)
    assert program("run_sql") == OWN_SPARK_SUBMIT
    assert program() == kept.STAND_IN


def program(job: str = "build_interval", *, delta: bool = False) -> Path:
    settings.cache_clear()
    made = submission(job, name=job, short=True, delta=delta)
    assert made.command()[0] == str(made.program)
    return made.program


@pytest.mark.parametrize("delta", [True, False])
def test_short_job_uses_the_jvm_and_finds_it_by_its_environment(home: Path, delta: bool) -> None:
    assert program(delta=delta) == kept.STAND_IN
    assert os.access(kept.STAND_IN, os.X_OK)
    assert submission("run_sql", name="sql").env[kept.GATEWAY] == str(home / "services" / "spark.gateway")


@pytest.mark.parametrize("job", ["stream", "show_top", "open_shell", "tail_topic"])
def test_job_that_would_hold_the_jvm_has_one_of_its_own(home: Path, job: str) -> None:
    assert program(job) == OWN_SPARK_SUBMIT


def _ended(patch: pytest.MonkeyPatch, home: Path) -> None:
    file = home / "services" / "spark.json"
    ended = str(ProcessIdentity.of(os.getpid())).replace("/", "/1", 1)
    file.write_text(json.dumps({**json.loads(file.read_text()), "process": ended}))


def _without_delta(patch: pytest.MonkeyPatch, home: Path) -> None:
    file = home / "services" / "spark.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "jars": list(map(str, driver_jars(None, delta=False)))})
    )


CHANGES: dict[str, Change] = {
    "another lake": lambda patch, home: patch.setenv("TIDEMARK_LAKE", str(home / "other")),
    "another heap": lambda patch, home: patch.setenv("TIDEMARK_DRIVER_MEMORY", "2g"),
    "another database": lambda patch, home: patch.setenv("TIDEMARK_DATABASE_URL", "postgresql://a:b@c:1"),
    "other credentials of a bucket": lambda patch, home: patch.setenv("AWS_SESSION_TOKEN", "renewed"),
    "options of the JVM": lambda patch, home: patch.setenv("TIDEMARK_JVM_OPTIONS", "-Xint"),
    "a cluster": lambda patch, home: patch.setenv("TIDEMARK_SPARK_MASTER", "spark://127.0.0.1:7077"),
    "being replaced": lambda patch, home: (home / "services" / "spark.gateway").unlink(),
    "no keeper": _ended,
    "a jar that it lacks": _without_delta,
}


@pytest.mark.parametrize("change", CHANGES)
def test_job_has_a_jvm_of_its_own_when_the_kept_one_would_not_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    CHANGES[change](monkeypatch, home)
    assert program(delta=True) == OWN_SPARK_SUBMIT


def test_settings_of_who_only_waits_or_tells_do_not_matter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_ARCHIVE_WAIT", "10m")
    monkeypatch.setenv("TIDEMARK_ALERT_EMAIL_TO", "operators@example.org")
    assert program() == kept.STAND_IN


def test_task_of_airflow_finds_what_stands_in_by_its_name(home: Path, set_settings: SetSettings) -> None:
    from include.airflow.spark import JobOperator

    set_settings(AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": "local[*]"}))
    operator = JobOperator(task_id="publish", job="publish", pipeline="nest_cameras", attempt="7")
    operator.take(submission("publish", name="publish nest_cameras"))
    assert operator.env_vars is not None
    assert operator.env_vars["PATH"] == os.pathsep.join([str(kept.STAND_IN.parent), os.environ["PATH"]])
    assert operator.env_vars[kept.GATEWAY] == str(home / "services" / "spark.gateway")
    (home / "services" / "spark.gateway").unlink()
    operator.take(submission("publish", name="publish nest_cameras"))
    assert "PATH" not in operator.env_vars
