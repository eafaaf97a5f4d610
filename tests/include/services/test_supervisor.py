"""What the supervisor starts, with services that only note that they were started."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from include.cli import services
from include.doctor import examine, machine
from include.doctor.finding import Finding
from include.errors import UsageError
from include.ledger.streams import writers
from include.services import supervisor
from include.services.process import ServiceStatus, read_state, start_detached, write_started, write_state
from include.settings import settings, write_private
from tests.conftest import SetSettings

DEAD = 2**22 + 1
"""No process has this pid."""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> list[str]:
    """The services that were started: of two that have died, and one that was stopped."""
    names: list[str] = []

    def service(name: str) -> SimpleNamespace:
        status = ServiceStatus("127.0.0.1:1", healthy=False, pid=None)
        return SimpleNamespace(status=lambda: status, up=lambda: names.append(name), down=lambda: None)

    set_settings(TIDEMARK_HOME=str(tmp_path))
    monkeypatch.setattr(supervisor, "SERVICES", {name: service(name) for name in ("kafka", "postgres", "spark")})
    # Only the services are repaired here.
    monkeypatch.setattr(examine, "repair_machine", lambda _: None)
    monkeypatch.setattr(examine, "_lake", lambda: [Finding(False, "the lake")])
    for name, pid in {"kafka": DEAD, "postgres": DEAD, "spark": None}.items():
        write_state(name, port=1, pid=pid)
    return names


def test_only_services_that_died_are_started_when_a_repair_is_asked_for(started: list[str]) -> None:
    examine.repair_all(lambda _: None, deep=False)
    assert started == ["kafka", "postgres"]


def test_service_stays_stopped_when_a_repair_waited_for_the_command_that_stopped_it(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def after_down() -> Iterator[None]:
        """Take the lock that `down` held until now."""
        write_state("kafka", **{**read_state("kafka"), "pid": None})
        yield

    monkeypatch.setattr(supervisor, "services_lock", after_down)
    examine.repair_all(lambda _: None, deep=False)
    assert started == ["postgres"]


def test_nothing_is_started_when_every_service_was_stopped(started: list[str]) -> None:
    for name in ("kafka", "postgres"):
        write_state(name, port=1, pid=None)
    examine.repair_all(lambda _: None, deep=False)
    assert started == []


@pytest.mark.parametrize(
    ("of_kafka", "is_stopped"),
    [
        (ServiceStatus("127.0.0.1:1", True, DEAD), True),
        (ServiceStatus("127.0.0.1:1", True, None, external=True), False),
        (ServiceStatus("", False, None), False),
    ],
    ids=["embedded", "external", "never started"],
)
def test_streams_of_an_external_ledger_end_when_the_kafka_that_stops_is_the_embedded_one(
    started: list[str], monkeypatch: pytest.MonkeyPatch, of_kafka: ServiceStatus, is_stopped: bool
) -> None:
    here = SimpleNamespace(status=lambda: of_kafka, down=lambda: None)
    there = SimpleNamespace(status=lambda: ServiceStatus("127.0.0.1:1", True, None, True), down=lambda: None)
    monkeypatch.setattr(supervisor, "SERVICES", {"kafka": here, "postgres": there})
    monkeypatch.setattr(supervisor, "postgres", there)
    for name in ("kafka", "postgres"):
        write_state(name, port=1, pid=None)
    driver = subprocess.Popen(["sleep", "600"])
    asked: list[str] = []

    def request_stop(pipeline: str) -> None:
        asked.append(pipeline)
        driver.terminate()

    monkeypatch.setattr(writers, "live_drivers", lambda: {"isp_hits": psutil.Process(driver.pid)})
    monkeypatch.setattr(writers, "request_stop", request_stop)
    try:
        supervisor.down()
        assert asked == (["isp_hits"] if is_stopped else [])
    finally:
        driver.kill()
        driver.wait()


def test_status_names_what_a_pipeline_needs_when_nothing_was_ever_started(
    empty_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services.status(as_json=True)
    listed = json.loads(capsys.readouterr().out)["services"]
    assert list(listed) == ["kafka", "postgres", "registry", "airflow"]
    for each in listed.values():
        assert (each["address"], each["healthy"], each["pid"]) == ("", False, None)


def test_services_are_listed_and_stopped_when_the_properties_of_kafka_are_refused(
    tmp_path: Path, set_settings: SetSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    write_private(tmp_path / "kafka.properties", "bootstrap.servers=cloud:9092\n")
    set_settings(
        TIDEMARK_HOME=str(tmp_path),
        TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1",
        TIDEMARK_KAFKA_PROPERTIES=str(tmp_path / "kafka.properties"),
    )
    services.status(as_json=True)
    supervisor.down()
    with pytest.raises(UsageError, match="TIDEMARK_KAFKA_PROPERTIES: it has bootstrap"):
        supervisor.up(["kafka"])
    (found,) = (each for each in examine._services(supervisor.status()) if "kafka" in each.what)
    listed = json.loads(capsys.readouterr().out)["services"]["kafka"]
    assert (listed["address"], listed["healthy"], listed["external"]) == ("127.0.0.1:1", False, True)
    assert "it has bootstrap.servers=cloud:9092" in listed["detail"]
    assert found.remedy == listed["detail"]


def test_airflow_is_told_to_have_other_settings_when_they_were_changed_after_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.delenv("TIDEMARK_ARCHIVE_WAIT", raising=False)
    settings.cache_clear()
    lake = {"TIDEMARK_LAKE": str(tmp_path / "lake"), "TIDEMARK_PROOF_KEY": "~/proof.key"}
    environment = {**os.environ, **lake, "TIDEMARK_ARCHIVE_WAIT": "10m", "TIDEMARK_UNUSUAL": "warn"}
    airflow = start_detached("airflow", ["sleep", "600"], environment)
    try:
        write_started("airflow", airflow, address="http://airflow")
        monkeypatch.setenv("TIDEMARK_UNUSUAL", "warn")
        # As this process's settings write them.
        monkeypatch.setenv("TIDEMARK_LAKE", f"file://{tmp_path}/lake")
        monkeypatch.setenv("TIDEMARK_PROOF_KEY", str(Path("~/proof.key").expanduser()))
        assert not supervisor.unlike_airflow()
        monkeypatch.setenv("TIDEMARK_LAKE", "s3a://other/lake")
        assert supervisor.unlike_airflow().endswith("other settings: TIDEMARK_LAKE")
        monkeypatch.setenv("TIDEMARK_LAKE", str(tmp_path / "lake"))
        monkeypatch.setenv("TIDEMARK_ALERT_WEBHOOK", "https://canary.example.org")
        monkeypatch.setenv("TIDEMARK_UNUSUAL", "")
        healthy = SimpleNamespace(status=lambda: ServiceStatus("http://airflow", True, airflow.pid))
        monkeypatch.setitem(supervisor.SERVICES, "airflow", healthy)
        monkeypatch.setattr(supervisor.airflow, "ensure_pool", lambda _: None)
        said: list[str] = []
        supervisor.up(["airflow"], said.append)
        (note,) = (each for each in machine.examine_settings() if "airflow" in each.what)
    finally:
        airflow.kill()
        airflow.wait()
        settings.cache_clear()
    told = "airflow was started with other settings: TIDEMARK_UNUSUAL, TIDEMARK_ALERT_WEBHOOK"
    assert said == [f"{told}; for those of this process: ./tidemark down airflow, then up again"]
    assert (note.what, note.notice) == (told, True)
    assert not supervisor.unlike_airflow()
