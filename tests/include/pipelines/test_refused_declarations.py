"""A declaration that is refused stops its own pipeline: the others are found, and the error says which file it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from include import pipelines
from include.airflow import streams
from include.cli.data import lag
from include.cli.data import pipelines as list_pipelines
from include.cli.housekeeping import housekeeping
from include.cli.services import status
from include.doctor import examine
from include.doctor.finding import Finding
from include.errors import AnotherWriter, UsageError
from include.housekeeping import run as keeping
from include.monitor import lag as lags
from include.monitor import missing
from include.monitor.missing import MissingSummary
from include.pipelines import declarations, load_pipeline, pipeline_of_table, reread_changed
from include.pipelines.spec import Pipeline
from include.services import supervisor
from include.services.process import ServiceStatus
from tests.support.shipped import all_pipelines

Write = Callable[[str, str], None]

OTHERS = list(pipelines.pipeline_names())
"""The pipelines beside which a test declares its own."""

DOOR = """
from include.pipelines.spec import *

VIEW = AdditiveView(
    "counts", rows="counted", aggregate="counts", key=("window",), measures=("count",), window="window",
    columns="window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT", windows=TimeWindow("1h"),
    speed=CompactedTopic("{topic}", watermark="1h"),
)
PIPELINE = Pipeline(
    name="{name}", description="Doors", source=KafkaTopics(subscribe=("{name}-events",)),
    decoder=Json(schema="at TIMESTAMP"), archive=Archive(rows="rows", columns="at TIMESTAMP", event_time="{at}"),
    views=(VIEW,),
)
"""


def door(name: str, topic: str = "", at: str = "at") -> str:
    return DOOR.format(name=name, topic=topic or f"{name}-counts", at=at)


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module beside the shipped declarations."""
    known = set(sys.modules)
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        forget()

    def forget() -> None:
        load_pipeline.cache_clear()
        declarations.cache_clear()

    yield write
    forget()
    for name in set(sys.modules) - known:
        if name.startswith("include.pipelines."):
            del sys.modules[name]
            delattr(pipelines, name.rpartition(".")[2])


BROKEN = {
    "type": (
        "from include.pipelines.spec import KafkaTopics\nPIPELINE = KafkaTopics(topics=1)",
        "include/pipelines/broken.py cannot be loaded: TypeError: KafkaTopics.__init__() got an unexpected keyword",
    ),
    "syntax": ("PIPELINE = (", "include/pipelines/broken.py cannot be loaded: SyntaxError: '(' was never closed"),
    "column": (door("broken", at="att"), "broken: event_time names 'att'"),
    "schedule": (
        door("broken").replace('description="Doors"', 'description="Doors", schedule="15m"'),
        "broken: the schedule is '15m' — write every(\"15m\") or hourly()",
    ),
    "other object": ("PIPELINE = 1", "include/pipelines/broken.py declares no PIPELINE named 'broken'"),
    "other name": (door("fine"), "include/pipelines/broken.py declares no PIPELINE named 'broken'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_error_names_pipeline_or_file_when_a_declaration_cannot_be_loaded(declare: Write, case: str) -> None:
    text, said = BROKEN[case]
    declare("broken", text)
    with pytest.raises(UsageError) as refused:
        load_pipeline("broken")
    assert str(refused.value).startswith(said)
    with pytest.raises(UsageError) as refused:
        all_pipelines()
    assert str(refused.value).startswith(said)


def test_other_pipelines_are_found_when_one_cannot_be_loaded(declare: Write) -> None:
    declare("broken", door("broken", at="att"))
    found = declarations()
    assert [each.name for each in found.pipelines] == OTHERS
    assert [reason.split(": event_time")[0] for reason in found.reasons] == ["include/pipelines/broken.py: broken"]
    assert load_pipeline("nest_cameras").name == pipeline_of_table("nest_cameras").name
    with pytest.raises(UsageError, match="event_time names 'att'"):
        pipeline_of_table("broken_counts")


def test_neither_pipeline_runs_when_both_write_what_must_be_of_one(declare: Write) -> None:
    declare("door_a", door("door_a", "doors"))
    declare("door_b", door("door_b", "doors"))
    found = declarations()
    assert {"door_a", "door_b"} <= {each.name for each in found.loaded}
    assert [each.name for each in found.pipelines] == OTHERS
    said = "door_a and door_b both write the topic doors — rename it in include/pipelines/door_b.py"
    assert found.reasons == [f"include/pipelines/{name}.py: {said}" for name in ("door_a", "door_b")]


def test_commands_over_all_pipelines_go_on_and_name_the_refused_one(
    declare: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    services = {name: ServiceStatus("", False, None) for name in ("kafka", "airflow")}
    monkeypatch.setattr(supervisor, "status", lambda: services)
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.setattr(examine, "unmade_dags", lambda: ["include/pipelines/doors.py: interval_dag: ValueError: no"])
    monkeypatch.setitem(supervisor.SERVICES, "postgres", SimpleNamespace(status=lambda: SimpleNamespace(healthy=False)))
    declare("broken", "PIPELINE = (")
    status(as_json=True)
    [refused] = json.loads(capsys.readouterr().out)["refused_pipelines"]
    assert refused["pipeline"] == "broken"
    reason = refused["reason"]
    assert reason.startswith("include/pipelines/broken.py cannot be loaded: SyntaxError")
    list_pipelines(as_json=True)
    listed = capsys.readouterr()
    assert [each["name"] for each in json.loads(listed.out)] == OTHERS
    assert "include/pipelines/broken.py cannot be loaded" in " ".join(listed.err.split())
    monkeypatch.setattr(examine, "examine_machine", tuple)
    monkeypatch.setattr(examine, "_lake", tuple)
    monkeypatch.setattr(examine, "_tables", lambda **_: ())
    assert examine.examine(deep=False) == [Finding(False, reason)]
    # Only where Airflow was started, or is configured, somebody waits for DAGs.
    monkeypatch.setenv("AIRFLOW_HOME", "/opt/airflow")
    *_, unmade = examine.examine(deep=False)
    assert (unmade.ok, unmade.what) == (False, "include/pipelines/doors.py: interval_dag: ValueError: no")


def test_house_is_kept_for_the_others_and_the_refused_one_named(
    declare: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(keeping, "keep_house", lambda each, **_: kept.append(each.name) or {"pipeline": each.name})
    declare("broken", "PIPELINE = (")
    with pytest.raises(typer.Exit) as ended:
        housekeeping(as_json=True)
    assert ended.value.exit_code == 64
    assert kept == OTHERS
    assert "include/pipelines/broken.py cannot be loaded" in " ".join(capsys.readouterr().err.split())


def test_house_is_kept_for_the_others_when_that_of_one_or_two_fails(
    declare: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {
        "gps_positions": AnotherWriter("another housekeeping is under way"),
        "isp_hits": UsageError("its files are of another ledger"),
    }

    def keep(pipeline: Pipeline, **_: object) -> dict[str, str]:
        if pipeline.name in failures:
            raise failures[pipeline.name]
        return {"pipeline": pipeline.name}

    monkeypatch.setattr(keeping, "keep_house", keep)
    declare("broken", "PIPELINE = (")
    with pytest.raises(AnotherWriter, match=r"^gps_positions: another housekeeping is under way"):
        housekeeping(as_json=True)
    told = capsys.readouterr()
    assert [each["pipeline"] for each in json.loads(told.out)] == [each for each in OTHERS if each not in failures]
    said = " ".join(told.err.split())
    assert "isp_hits: its files are of another ledger" in said
    assert "include/pipelines/broken.py cannot be loaded" in said
    with pytest.raises(UsageError, match="isp_hits: its files are of another ledger"):
        housekeeping("isp_hits", as_json=True)
    assert capsys.readouterr().out == ""


def test_lag_of_the_others_is_measured_when_one_is_refused(
    declare: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lags, "lag_of", lambda each: [])
    monkeypatch.setattr(lags, "log_error", lambda *_: None)
    monkeypatch.setattr(missing, "summarize_missing", lambda each: MissingSummary(each.name, 0, None, None, 0))
    declare("broken", "PIPELINE = (")
    lag(metrics=True)
    told = capsys.readouterr()
    assert told.out.count("tidemark_missing_intervals{") == len(OTHERS)
    assert "include/pipelines/broken.py cannot be loaded" in " ".join(told.err.split())


def test_declaration_is_found_when_it_is_a_package_or_comes_from_another_module(declare: Write, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text(door("packed"), encoding="utf-8")
    # As an editor's lock: a link to nothing.
    (tmp_path / ".#door.py").symlink_to(tmp_path / "nothing")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing")
    declare("taken", "from include.pipelines.nest_cameras import PIPELINE")
    assert {"packed", "taken"} <= set(pipelines.pipeline_names())
    assert not {".#door", "gone", "spec"} & set(pipelines.pipeline_names())
    assert load_pipeline("packed").name == "packed"
    assert "include/pipelines/taken.py declares no PIPELINE named 'taken'" in declarations().reasons[0]


def test_process_keeps_its_declarations_until_it_asks_for_the_changed_ones(declare: Write, tmp_path: Path) -> None:
    declare("door_a", door("door_a"))
    declare("door_b", "from include.pipelines.common import *\n" + door("door_b").replace('"Doors"', "WORDS"))
    declare("common", "WORDS = 'Doors'")
    first, begun_with = declarations(), load_pipeline("door_a")
    (tmp_path / "door_a.py").unlink()
    (tmp_path / "common.py").write_text("WORDS = 'Other doors'")
    (tmp_path / "door_c.py").write_text(door("door_c"))
    # As a driver does.
    assert (declarations(), load_pipeline("door_a")) == (first, begun_with)
    reread_changed()
    names = {each.name for each in declarations().loaded}
    assert names == {*OTHERS, "door_b", "door_c"}
    assert load_pipeline("door_b").description == "Other doors"
    with pytest.raises(UsageError, match="unknown pipeline 'door_a'"):
        load_pipeline("door_a")
    (tmp_path / "door_c.py").write_text("PIPELINE = (")
    reread_changed()
    assert list(declarations().refused) == ["door_c"]
    unchanged = declarations()
    reread_changed()
    assert declarations() is unchanged


def test_driver_of_a_refused_pipeline_is_left_alone(declare: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.writers, "live_writer", lambda name: None)
    declare("broken", "PIPELINE = (")
    assert "broken" in pipelines.pipeline_names()
    assert streams.look_at_progress("broken", streams.Progress(), 0.0, "") is None


def test_module_without_a_pipeline_is_none_when_it_lies_beside_declarations(declare: Write) -> None:
    declare("common", "TOPICS = ('a',)  # for each PIPELINE")
    assert "common" not in pipelines.pipeline_names()
    assert [each.name for each in all_pipelines()] == OTHERS
    with pytest.raises(UsageError, match=r"include/pipelines/common.py declares no PIPELINE"):
        load_pipeline("common")
    with pytest.raises(UsageError, match="unknown pipeline 'uncommon'"):
        load_pipeline("uncommon")
