"""`--json` of the verbs that start and stop: what programs need to connect."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from include.airflow import demo_run
from include.cli import __main__ as command
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
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
    monkeypatch.setattr(demo_run, "run_demo", lambda pipeline, progress, topic: result)
    monkeypatch.setattr("sys.argv", ["tidemark", "demo", "isp_hits", "--json"])
    assert command.main() == 0
    assert json.loads(capsys.readouterr().out) == {
        "airflow": "http://127.0.0.1:8080/",
        "pages": "http://127.0.0.1:8080/tidemark/",
        "login": {"user": "admin", "password": "p"},
        "verdict": verdict,
    }


@pytest.mark.parametrize(("verb", "everything"), [("up", supervisor.ALL), ("down", tuple(supervisor.SERVICES))])
def test_help_names_each_service_and_what_all_leaves_out(verb: str, everything: tuple[str, ...]) -> None:
    root: Any = typer.main.get_command(command.app)
    [names] = [each for each in root.get_command(typer.Context(root), verb).params if each.name == "names"]
    listed, _, left_out = names.help.partition(", or all")
    assert listed == ", ".join(supervisor.SERVICES)
    assert re.findall(r"\w+", left_out.replace("but", "").replace("and", "")) == [
        name for name in supervisor.SERVICES if name not in everything
    ]


def shown_by_demo(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the demo of a pipeline prints at its end."""
    verdict = {
        "registered": [],
        "report": f"/reports/{pipeline.name}.html",
        "records": dict.fromkeys(("in_ranges", "archived", "empty", "quarantined", "gaps"), 0),
        "reconciliation": {},
    }
    result = SimpleNamespace(airflow="http://127.0.0.1:8080/", user="admin", password="p", verdict=verdict)
    monkeypatch.setattr(demo_run, "run_demo", lambda pipeline, progress, topic: result)
    monkeypatch.setattr("include.cli.demo.load_pipeline", lambda _: pipeline)
    monkeypatch.setattr("sys.argv", ["tidemark", "demo", pipeline.name])
    assert command.main() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("windows", [True, False])
def test_demo_names_the_live_page_only_when_a_view_has_windows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], windows: bool
) -> None:
    declared = load_pipeline("isp_hits")
    views = tuple(view for view in declared.views if view.is_total != windows)
    assert views
    shown = shown_by_demo(replace(declared, views=views, reports=()), monkeypatch, capsys)
    assert ("./tidemark top isp_hits --serve" in shown) == windows


@pytest.mark.parametrize(("name", "has_flags"), [("auction_bids", True), ("isp_hits", False)])
def test_demo_names_the_topic_of_flags_and_a_command_for_more_when_there_are_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, has_flags: bool
) -> None:
    shown = shown_by_demo(load_pipeline(name), monkeypatch, capsys)
    assert ("auction-flags" in shown) == has_flags
    # The rules have limits only once an interval is registered.
    assert (f"./tidemark produce {name} --events" in shown) == has_flags


def test_demo_names_a_command_for_each_dag_that_it_leaves_paused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_by_demo(load_pipeline("isp_hits"), monkeypatch, capsys)
    assert re.findall("airflow dags unpause (.*?) *\n", shown) == ["watch", "housekeeping"]


def test_demo_refuses_a_topic_when_its_pipeline_does_not_read_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tidemark", "demo", "isp_hits", "--topic", "door-bells"])
    assert command.main() == 64
    assert "does not read topic 'door-bells'" in capsys.readouterr().err
