"""`--json` of the verbs that start and stop: what programs need to connect."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from include.airflow import demo_run
from include.cli import __main__ as command
from include.services import supervisor
from include.services.process import ServiceStatus

KAFKA = ServiceStatus("127.0.0.1:9092", True, 7)


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "up", lambda names, progress: progress("kafka: starting"))
    monkeypatch.setattr(supervisor, "down", lambda names, progress: progress("kafka: stopped"))
    monkeypatch.setattr(supervisor, "status", lambda: {"kafka": KAFKA})


@pytest.mark.parametrize("verb", ["up", "down"])
def test_services_are_printed_as_status_prints_them_when_json_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.setattr("sys.argv", ["tidemark", verb, "--json"])
    assert command.main() == 0
    listed = json.loads(capsys.readouterr().out)["services"]["kafka"]
    assert listed == {
        "address": "127.0.0.1:9092", "healthy": True, "pid": 7, "external": False, "detail": "", "is_broken": False
    }  # fmt: skip


def test_demo_prints_addresses_and_verdict_when_json_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = {"registered": [], "records": {"in_ranges": 3}}
    result = SimpleNamespace(airflow="http://127.0.0.1:8080/", user="admin", password="p", verdict=verdict)
    monkeypatch.setattr(demo_run, "run_demo", lambda pipeline, progress: result)
    monkeypatch.setattr("sys.argv", ["tidemark", "demo", "isp_hits", "--json"])
    assert command.main() == 0
    assert json.loads(capsys.readouterr().out) == {
        "airflow": "http://127.0.0.1:8080/",
        "pages": "http://127.0.0.1:8080/tidemark/",
        "login": {"user": "admin", "password": "p"},
        "verdict": verdict,
    }
