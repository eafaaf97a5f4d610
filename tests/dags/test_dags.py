"""What the DAG files make: names, the vital order of tasks, and nothing heavy or secret."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest

from include.pipelines import load_pipeline, pipeline_names
from spark_jobs.kept import forks
from tests.conftest import REPOSITORY
from tests.support.shipped import SHIPPED

SCRIPT = """
import json, sys
sys.path.insert(0, "dags")
import daily, decide, declarations, housekeeping, intervals, streams, watch
from types import SimpleNamespace
from airflow.serialization.serialized_objects import DagSerialization
from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy
found = {}
for module in (streams, intervals, housekeeping, daily, watch, decide):
    for name, dag in vars(module).items():
        if hasattr(dag, "task_dict"):
            found[name] = {
                "tasks": {t: sorted(task.downstream_task_ids) for t, task in dag.task_dict.items()},
                "spark": sorted(t for t, task in dag.task_dict.items()
                    if any(c.__name__ == "SparkSubmitOperator" for c in type(task).__mro__)),
                "pools": {t: (task.pool, task.pool_slots) for t, task in dag.task_dict.items()},
                "totals": {t: validate_and_load_priority_weight_strategy(task.weight_rule).get_weight(
                    SimpleNamespace(task=task, run_id="scheduled__x", dag_run=None))
                    for t, task in dag.task_dict.items()},
                "weights": {t: task.priority_weight for t, task in dag.task_dict.items()},
                "links": {t: [link.name for link in task.operator_extra_links] for t, task in dag.task_dict.items()},
                "form": {each: dag.params.get_param(each).schema.get("section") for each in dag.params},
                "keys": {t: [getattr(told, "key", "") for told in (
                    *task.on_failure_callback, *task.on_success_callback)] for t, task in dag.task_dict.items()},
                "alerts": sorted(t for t, task in dag.task_dict.items() if task.on_failure_callback),
                "begins": sorted({str(task.start_date) for task in dag.task_dict.values()}),
                "doc": dag.doc_md,
                "paused": dag.is_paused_upon_creation,
                "serialized": json.dumps(DagSerialization.serialize_dag(dag), default=str),
            }
heavy = sorted(set(sys.modules) & {"pyspark", "great_expectations", "pandas"})
print("RESULT" + json.dumps({"dags": found, "heavy": heavy}))
"""

CARRY_OUT = """
import json, sys
from types import SimpleNamespace
sys.path.insert(0, "dags")
import decide
said = []
for shown in ({"subject": "?", "body": "", "digest": "5e21"}, {"subject": "?", "body": ""}):
    instance = SimpleNamespace(xcom_pull=lambda task_ids: shown if task_ids == "show" else None)
    params = {"decision": "accept loss", "pipeline": "nest_cameras"}
    decide.get_current_context = lambda: {"params": params, "ti": instance}
    decide.carry_out = lambda request, **options: said.append(options)
    answer = {"responded_by_user": {"name": "ada"}, "params_input": {"reason": "moved"}}
    decide.decide.task_dict["carry_out"].python_callable(answer)
try:
    decide.decide.task_dict["carry_out"].python_callable(None)
except Exception as error:
    said.append([type(error).__name__, str(error)])
print("RESULT" + json.dumps(said))
"""


LIBRARIES = (
    "airflow.sdk",
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.standard.decorators.python",
    "airflow.providers.standard.operators.python",
    "airflow.providers.standard.sensors.python",
    "airflow.serialization.serialized_objects",
    "airflow.task.priority_strategy",
    "airflow.triggers.base",
    "httpx",
)
"""What the DAG processor has loaded before it reads the first DAG file, and forks for each file."""

RunScript = Callable[..., Any]
"""Runs a script with arguments, and returns what it prints after RESULT."""


@pytest.fixture(scope="module")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunScript]:
    """Runs scripts as the DAG processor runs DAG files: in forks, with no service, and canary secrets as settings."""
    folder = tmp_path_factory.mktemp("airflow")
    settings = {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "include" / "airflow" / "plugins"),
        "TIDEMARK_DATABASE_URL": "postgresql://canary:canary-secret@127.0.0.1:1/ledger",
        "TIDEMARK_HOME": str(folder / "home"),
    }
    numbers, address = count(), folder / "python"

    def run(script: str, *arguments: str) -> Any:
        file = folder / f"script_{next(numbers)}.py"
        file.write_text(script)
        with file.with_suffix(".out").open("w+") as output, file.with_suffix(".err").open("w+") as errors:
            files = (output.fileno(), errors.fileno())
            code = forks.ask(address, [str(file), *arguments], {**os.environ, **settings}, REPOSITORY, files, 120)
            output.seek(0)
            errors.seek(0)
            assert code == 0, errors.read()[-3000:]
            line = next(line for line in output if line.startswith("RESULT"))
        return json.loads(line.removeprefix("RESULT"))

    with (folder / "python.log").open("wb") as log:
        with pytest.MonkeyPatch.context() as patch:
            # Airflow prints warnings to standard output, where the process says that it is ready.
            for name, value in {**settings, "PYTHONWARNINGS": "ignore"}.items():
                patch.setenv(name, value)
            processor = forks.Forks(address, LIBRARIES, log)
        processor.await_ready()
        yield run
        processor.end()


def dags_of_pipelines() -> set[str]:
    """The DAGs of all declared pipelines; one whose intervals are not hours has none of its days."""
    every = {f"{kind}__{name}" for name in pipeline_names() for kind in ("interval", "stream")}
    daily = {f"daily__{name}" for name in pipeline_names() if load_pipeline(name).schedule.is_hourly}
    assert daily >= {f"daily__{name}" for name in SHIPPED}
    return every | daily


@pytest.fixture(scope="module")
def parsed(run_script: RunScript) -> dict[str, Any]:
    found: dict[str, Any] = run_script(SCRIPT)
    return found


def test_stream_interval_and_daily_dag_exist_when_a_pipeline_is_declared(parsed: dict[str, Any]) -> None:
    assert set(parsed["dags"]) == {"housekeeping", "watch", "decide"} | dags_of_pipelines()
    assert all(dag["paused"] for dag in parsed["dags"].values())


def test_no_heavy_library_and_no_service_is_needed_when_dags_are_parsed(parsed: dict[str, Any]) -> None:
    assert parsed["heavy"] == []


def test_interval_publishes_only_when_it_was_reconciled(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["interval__nest_cameras"]["tasks"]
    tables = {f"announce_tables.{table}" for table in ("nest_cameras", "nest_cameras_hourly_counts")}
    missing = {"find_missing", "build_missing"}
    assert set(tasks) == {"pin_ranges", "build_interval", "reconcile", "publish", "announce"} | tables | missing
    assert tasks["build_interval"] == ["reconcile"]
    assert tasks["reconcile"] == ["publish"]
    assert tasks["publish"] == ["announce"]
    assert "build_interval" in tasks["pin_ranges"]
    assert set(tasks["announce"]) == tables
    # Only after the run has pinned earlier intervals; no other task waits for it.
    assert "find_missing" in tasks["pin_ranges"]
    assert (tasks["find_missing"], tasks["build_missing"]) == (["build_missing"], [])


def test_tasks_of_a_run_by_hand_are_made_however_old_its_logical_date(parsed: dict[str, Any]) -> None:
    """Airflow makes none of a task that begins later."""
    assert parsed["dags"]["interval__nest_cameras"]["begins"] == ["1970-01-01 00:00:00+00:00"]


def test_spark_submit_operators_are_used_when_spark_is_started(parsed: dict[str, Any]) -> None:
    assert parsed["dags"]["interval__nest_cameras"]["spark"] == ["build_interval", "publish"]
    assert parsed["dags"]["stream__nest_cameras"]["spark"] == ["stream"]
    assert parsed["dags"]["housekeeping"]["spark"] == []


def test_pool_is_shared_when_spark_drivers_of_intervals_run(parsed: dict[str, Any]) -> None:
    pools = parsed["dags"]["interval__nest_cameras"]["pools"]
    of_spark = {task for task, (pool, _) in pools.items() if pool == "tidemark_spark"}
    assert of_spark == {"build_interval", "publish"}
    assert pools["publish"] == ["tidemark_spark", 1]
    assert parsed["dags"]["stream__nest_cameras"]["pools"] == {"stream": ["default_pool", 1]}


def test_stream_comes_first_when_many_tasks_of_intervals_wait(parsed: dict[str, Any]) -> None:
    totals = (dag["totals"].values() for name, dag in parsed["dags"].items() if name.startswith("interval__"))
    most = max(chain.from_iterable(totals))
    assert parsed["dags"]["stream__nest_cameras"]["weights"]["stream"] > most


def test_begun_interval_ends_first_when_others_wait_for_the_same_pool(parsed: dict[str, Any]) -> None:
    totals = parsed["dags"]["interval__nest_cameras"]["totals"]
    assert totals["publish"] > totals["build_interval"] > totals["pin_ranges"]


ORDER = """
import json, sys
sys.path.insert(0, "dags")
import intervals
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.serialization.serialized_objects import DagSerialization
dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(intervals.made.dags["interval__nest_cameras"]))
build, pin = dag.get_task("build_interval"), dag.get_task("pin_ranges")
weights = {}
for run in ("scheduled__live", "manual__by_hand", "backfill__old", "missing__old"):
    of_run = dict(run_id=run, map_index=-1, dag_version_id=None)
    made = TaskInstance.insert_mapping(task=build, dag_run=DagRun(dag_id=dag.dag_id, run_id=run), **of_run)
    assert made["priority_weight"] == TaskInstance(build, **of_run).priority_weight
    weights[run] = made["priority_weight"]
# As a person clears it, or a backfill that takes a run over.
for name, task in (("cleared", build), ("cleared, not begun", pin)):
    cleared = TaskInstance(task, run_id="scheduled__past", dag_version_id=None)
    cleared.dag_run = DagRun(dag_id=dag.dag_id, run_id="scheduled__past", run_type="scheduled")
    cleared.refresh_from_task(task, dag_run=cleared.dag_run)
    weights[name] = cleared.priority_weight
print("RESULT" + json.dumps(weights))
"""


def test_live_hours_and_a_persons_runs_go_first_when_a_backfill_waits_for_the_same_pool(run_script: RunScript) -> None:
    weights = run_script(ORDER)
    live = weights["scheduled__live"]
    assert live == weights["manual__by_hand"] > weights["cleared"] > weights["cleared, not begun"]
    assert weights["cleared, not begun"] > weights["backfill__old"] == weights["missing__old"]


WITHOUT_PLUGINS = """
import json, sys
sys.path.insert(0, "dags")
from airflow import settings
settings.PLUGINS_FOLDER = "/nowhere"
import intervals
from airflow.serialization.serialized_objects import DagSerialization
serialized = DagSerialization.serialize_dag(intervals.made.dags["interval__nest_cameras"])
print("RESULT" + json.dumps(sorted({str(each["__var"].get("weight_rule")) for each in serialized["tasks"]})))
"""


def test_dag_is_read_when_airflow_has_another_plugins_folder(run_script: RunScript) -> None:
    assert run_script(WITHOUT_PLUGINS) == ["None", "upstream"]


def test_form_asks_which_interval_and_how_when_a_run_is_triggered(parsed: dict[str, Any]) -> None:
    sections = parsed["dags"]["interval__nest_cameras"]["form"]
    which, how = "Which interval", "How"
    sought = {"from": which, "to": which, "source": how, "repin": how, "new_references": how, "dry_run": how}
    assert sections == {**sought, "build_missing": "Missing intervals"}


def test_task_links_to_a_page_when_the_page_is_about_what_it_works_on(parsed: dict[str, Any]) -> None:
    links = parsed["dags"]["interval__nest_cameras"]["links"]
    steps = ("pin_ranges", "build_interval", "reconcile", "publish", "announce")
    assert {task: links[task] for task in steps} == {task: ["Interval page", "Stream page"] for task in steps}
    assert parsed["dags"]["stream__nest_cameras"]["links"] == {
        "stream": ["Stream page", "Driver log", "Spark's own pages"]
    }


PARSE_TIMES = """
import importlib, json, sys, time
sys.path.insert(0, "dags")
# What every DAG file needs: the DAG processor has it loaded before it reads the first one.
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit, airflow.providers.standard.operators.python
import airflow.providers.standard.sensors.python, airflow.providers.standard.decorators.python
import airflow.triggers.base, airflow.serialization.serialized_objects, include.ledger.alerts.noted, include.kafka
import httpx, include.lake
seconds = {}
for name in sys.argv[1:]:
    began = time.process_time()
    importlib.import_module(name)
    seconds[name] = time.process_time() - began
print("RESULT" + json.dumps(seconds))
"""


def test_dag_file_is_read_in_a_second_when_it_is_parsed(run_script: RunScript) -> None:
    files = sorted(path.stem for path in (REPOSITORY / "dags").glob("*.py"))
    slow, tries = set(files), []
    # A busy machine costs CPU time, too, but hardly the same file's in each of three processes.
    while slow and len(tries) < 3:
        tries.append(run_script(PARSE_TIMES, *files))
        slow -= {name for name, each in tries[-1].items() if each <= 1}
    assert slow == set(), tries


EXAMPLE = """
import json
from airflow.serialization.serialized_objects import DagSerialization
from include.airflow.examples import consume_tables
found = {}
for dag in (consume_tables.each_interval, consume_tables.each_day):
    DagSerialization.serialize_dag(dag)
    found[dag.dag_id] = type(dag.timetable).__name__
print("RESULT" + json.dumps(found))
"""


def test_example_follows_a_table_by_both_kinds_of_event_when_it_is_parsed(run_script: RunScript) -> None:
    assert run_script(EXAMPLE) == {
        "each_interval_of_nest_cameras": "AssetTriggeredTimetable",
        "each_day_of_nest_cameras": "PartitionedAssetTimetable",
    }


LATE_ROW = """
import json
from types import SimpleNamespace
from include.airflow.examples import consume_tables
def event(timestamp, **partitions):
    return SimpleNamespace(timestamp=timestamp, extra={"interval": {"from": "2026-11-21T00:00:00Z"}, **partitions})
of_day = {"table": "nest_cameras", "partition": "date=2026-11-21/interval=2026-11-21T00", "location": "/lake/new"}
of_late_row = {"table": "nest_cameras", "partition": "date=2026-11-20/interval=2026-11-21T00", "location": "/lake/late"}
before, now = event(1, partitions=[of_late_row], dropped=[]), event(2, partitions=[of_day], dropped=[of_late_row])
told = {consume_tables.TABLE: [now, before]}
read_new = consume_tables.each_interval.task_dict["read_new_partitions"].python_callable
read_day = consume_tables.each_day.task_dict["read_day"].python_callable
print("RESULT" + json.dumps({
    "interval": read_new(triggering_asset_events=told),
    "day": read_day(dag_run=SimpleNamespace(partition_key="2026-11-21")),
}))
"""


def test_example_reads_a_late_row_across_midnight_and_drops_what_a_rerun_dropped(run_script: RunScript) -> None:
    found = run_script(LATE_ROW)
    late = "date=2026-11-20/interval=2026-11-21T00"
    assert found["interval"] == {"2026-11-21T00:00:00Z": {"read": ["/lake/new"], "drop": [late]}}
    partitions = [("2026-11-20", "2026-11-20T23"), ("2026-11-20", "2026-11-21T00"), ("2026-11-21", "2026-11-22T00")]
    with closing(sqlite3.connect(":memory:")) as table:
        table.execute("CREATE TABLE nest_cameras (date TEXT, interval TEXT)")
        table.executemany("INSERT INTO nest_cameras VALUES (?, ?)", partitions)
        read = table.execute(f"SELECT date, interval FROM nest_cameras WHERE {found['day']}").fetchall()
    assert read == [("2026-11-20", "2026-11-21T00")]


def test_task_raises_an_alert_when_it_fails_for_good_in_a_dag_of_a_pipeline(parsed: dict[str, Any]) -> None:
    dags = {name: dag for name, dag in parsed["dags"].items() if "__" in name or name == "housekeeping"}
    assert len(dags) > len(pipeline_names())
    silent = {name: sorted(set(dag["tasks"]) - set(dag["alerts"])) for name, dag in dags.items()}
    assert {name: tasks for name, tasks in silent.items() if tasks} == {}


def test_housekeeping_has_a_task_that_waits_for_no_other_when_a_pipeline_is_declared(parsed: dict[str, Any]) -> None:
    assert parsed["dags"]["housekeeping"]["tasks"] == {name: [] for name in pipeline_names()}
    assert "| nest_cameras | landing 2d, revisions 7d, replaced files 7d |" in parsed["dags"]["housekeeping"]["doc"]


def test_housekeeping_does_not_begin_with_an_interval_when_its_length_is_minutes(parsed: dict[str, Any]) -> None:
    """It leaves the files that an attempt under way may be reading."""
    [minute] = re.findall(r'"(\d+) 3 \* \* \*"', parsed["dags"]["housekeeping"]["serialized"])
    assert [every for every in (5, 6, 10, 12, 15, 20, 30) if int(minute) % every < 2] == []


def test_later_run_of_housekeeping_ends_the_alert_when_one_failed(parsed: dict[str, Any]) -> None:
    keys = {name: [f"housekeeping/{name}"] * 2 for name in pipeline_names()}
    assert parsed["dags"]["housekeeping"]["keys"] == keys


def test_docs_explain_a_failure_when_the_operator_reads_them(parsed: dict[str, Any]) -> None:
    for dag in parsed["dags"].values():
        for word in ("**What**", "**When**", "**Reads**", "failure"):
            assert word in dag["doc"]


def test_no_secret_is_shown_when_dags_are_serialized(parsed: dict[str, Any]) -> None:
    for dag in parsed["dags"].values():
        assert "canary" not in dag["serialized"]


BESIDE_BROKEN = """
import contextlib, json, sys
import include.pipelines
sys.path.insert(0, "dags")
include.pipelines.__path__.append(sys.argv[1])
import daily, housekeeping, intervals, streams, watch
found = [name for module in (daily, housekeeping, intervals, streams, watch) for name in vars(module)]
looked = []
watch.overdue.watch = lambda pipeline: looked.append(pipeline.name)
watch.refused.watch = lambda found, now: looked.extend(f"refused {name}" for name in found.refused) or 0
watch.recover_succeeded = lambda states: 0
watch.alerts.sent_together = contextlib.nullcontext
watch.watch_everything(None)
try:
    import declarations
    error = ""
except Exception as raised:
    error = str(raised)
print("RESULT" + json.dumps({"found": found, "error": error, "looked": looked,
    "kept": sorted(housekeeping.housekeeping.task_dict)}))
"""


def test_dags_of_other_pipelines_exist_and_one_file_names_the_error_when_a_declaration_is_broken(
    tmp_path: Path, run_script: RunScript
) -> None:
    declared = tmp_path / "declared"
    declared.mkdir()
    (declared / "broken.py").write_text("from include.pipelines.spec import *\nPIPELINE = Pipeline(nam='broken')")
    (declared / "common.py").write_text("TOPIC = 'doors'")
    told = run_script(BESIDE_BROKEN, str(declared))
    names = set(pipeline_names())
    assert {each for each in told["found"] if "__" in each.strip("_")} >= dags_of_pipelines()
    assert not [each for each in told["found"] if "broken" in each or "common" in each]
    assert set(told["kept"]) == names
    assert set(told["looked"]) == names | {"refused broken"}
    assert "include/pipelines/broken.py cannot be loaded: TypeError: " in told["error"]
    # Airflow parses only files that hold these two words.
    text = (REPOSITORY / "dags" / "declarations.py").read_text(encoding="utf-8").lower()
    assert "dag" in text
    assert "airflow" in text


ONE_FAILS = """
import contextlib, json, sys
sys.path.insert(0, "dags")
from include.pipelines import declarations
broken = next(each for each in declarations().loaded if each.name == "auction_bids")
# As if the declaration had been accepted.
object.__setattr__(broken, "schedule", "15m")
object.__setattr__(broken, "retention", None)
import housekeeping, watch
from include.errors import ServiceUnreachable
looked = []
def look(pipeline):
    looked.append(pipeline.name)
    if pipeline.name == "auction_bids":
        raise raised
    return {"overdue": 0}
watch.overdue.watch = look
watch.refused.watch = lambda found, now: looked.append("declarations") or 0
watch.recover_succeeded = lambda states: 0
watch.alerts.sent_together = contextlib.nullcontext
errors = []
for raised in (KeyError("until"), ServiceUnreachable("the ledger is away")):
    try:
        watch.watch_everything(None)
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
docs = [housekeeping.housekeeping.doc_md, watch.watch.doc_md]
print("RESULT" + json.dumps({"looked": looked, "errors": errors, "docs": docs,
    "kept": sorted(housekeeping.housekeeping.task_dict)}))
"""


def test_other_pipelines_are_watched_and_the_run_fails_when_one_cannot_be(run_script: RunScript) -> None:
    told = run_script(ONE_FAILS)
    assert told["kept"] == [*pipeline_names()]
    for doc in told["docs"]:
        assert "| auction_bids | AttributeError: " in doc
        assert "| isp_hits | " in doc
    assert {"erasure", "declaration"} <= set(told["docs"][1].split())
    once = [*pipeline_names(), "declarations"]
    # A ledger that is away is waited for once.
    assert told["looked"] == [*once, "auction_bids"]
    (kind, said), away = told["errors"]
    assert kind == "TidemarkError"
    assert said.startswith("these pipelines could not be checked: auction_bids: KeyError: 'until' — all others were")
    assert away == ["ServiceUnreachable", "the ledger is away"]


UNMADE = """
import json, sys
sys.path.insert(0, "dags")
from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext
from include.pipelines import declarations
loaded = {each.name: each for each in declarations().loaded}
# As if the declaration had been accepted: Airflow has no such pool slots, and cron no such schedule.
object.__setattr__(loaded["isp_hits"], "spark_slots", 0)
object.__setattr__(loaded["gps_positions"], "schedule", "15m")
DagContext.current_autoregister_module_name = __name__
import daily, intervals, streams
found = sorted(name for module in (daily, intervals, streams) for name, each in vars(module).items()
    if isinstance(each, DAG))
try:
    import declarations
    error = ""
except Exception as raised:
    error = str(raised)
registered = sorted(dag.dag_id for dag, _ in DagContext.autoregistered_dags)
print("RESULT" + json.dumps({"found": found, "error": error, "registered": registered}))
"""


def test_dags_of_other_pipelines_exist_when_one_cannot_be_made(run_script: RunScript) -> None:
    told = run_script(UNMADE)
    every = dags_of_pipelines()
    assert every - set(told["found"]) == {"interval__isp_hits", "interval__gps_positions", "daily__gps_positions"}
    assert set(told["found"]) <= every
    assert "include/pipelines/isp_hits.py: interval_dag: ValueError: pool slots for build_interval" in told["error"]
    assert "include/pipelines/gps_positions.py: interval_dag: AttributeError: 'str' object" in told["error"]
    # Airflow takes what is registered for DAGs of the file that it reads, also DAGs that were begun and not completed.
    assert told["registered"] == []


INTERVALS_OF_RUNS = """
import json, sys
from datetime import UTC, datetime
from types import SimpleNamespace
from include.airflow import tasks
from include.airflow.tasks import interval_of_run, pin_unless_behind
from include.errors import TidemarkError
from include.pipelines import load_pipeline

def run_of(run_type, begin=None, end=None, logical_date=None):
    return SimpleNamespace(
        run_type=run_type, data_interval_start=begin, data_interval_end=end, logical_date=logical_date,
        run_after=at(9, 40), run_id="run", get_first_reschedule_date=lambda context: None)

at = lambda hour, minute=0: datetime(2026, 11, 20, hour, minute, tzinfo=UTC)
scheduled = run_of("scheduled", at(3), at(4), at(3))
by_hand = run_of("manual")
both = {"from": "2026-11-20T01:00:00Z", "to": "2026-11-20T02:00:00Z"}
cases = {
    "scheduled": (scheduled, {}),
    "by hand": (by_hand, {}),
    "form": (by_hand, both),
    "taken over": (run_of("backfill", at(4), at(5), at(5)), {}),
    "half a form": (scheduled, {"from": both["from"], "to": None}),
    # As Airflow infers the data interval of a manual run: the last one complete before its logical date.
    "logical date": (run_of("manual", at(4), at(5), at(5)), {}),
    "now": (run_of("manual", at(4), at(5), at(5, 40)), {}),
    "data interval": (run_of("manual", at(3), at(4), at(5)), {}),
    "no interval": (run_of("manual", at(5, 13), at(5, 20), at(5, 13)), {}),
    "earlier schedule": (run_of("scheduled", at(5, 15), at(5, 30), at(5, 15)), {}),
    "backfill": (run_of("backfill", at(5), at(6), at(5)), {}),
}
found = {}
# The ledger of a DAG parser is away.
pinned = pin_unless_behind(load_pipeline("nest_cameras"), {"dag_run": by_hand, "ti": by_hand, "params": {}})
found["waits"] = pinned is None
tasks.attempts = SimpleNamespace(interval_of_run=lambda pipeline, run_by, at: None)
for name, (run, params) in cases.items():
    try:
        found[name] = str(interval_of_run(load_pipeline("nest_cameras"), {"dag_run": run, "params": params}))
    except TidemarkError as error:
        found[name] = error.exit_code
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def intervals_of_runs(run_script: RunScript) -> dict[str, str | int]:
    found: dict[str, str | int] = run_script(INTERVALS_OF_RUNS)
    return found


def test_run_takes_the_last_complete_interval_when_it_has_neither_parameters_nor_a_data_interval(
    intervals_of_runs: dict[str, str | int],
) -> None:
    assert intervals_of_runs["scheduled"] == "2026-11-20T03:00:00Z/2026-11-20T04:00:00Z"
    # Airflow gives a run without a logical date no data interval at all.
    assert intervals_of_runs["by hand"] == "2026-11-20T08:00:00Z/2026-11-20T09:00:00Z"
    assert intervals_of_runs["form"] == "2026-11-20T01:00:00Z/2026-11-20T02:00:00Z"
    assert intervals_of_runs["half a form"] == 64


def test_manual_run_builds_the_same_interval_as_the_schedule_when_its_logical_date_is_a_boundary(
    intervals_of_runs: dict[str, str | int],
) -> None:
    hour = "2026-11-20T05:00:00Z/2026-11-20T06:00:00Z"
    assert intervals_of_runs["logical date"] == intervals_of_runs["backfill"] == hour
    # A backfill that takes over such a run changes its type alone.
    assert intervals_of_runs["taken over"] == hour
    # The button gives the time at which it was pressed.
    assert intervals_of_runs["now"] == "2026-11-20T04:00:00Z/2026-11-20T05:00:00Z"


def test_manual_run_waits_when_the_ledger_is_away(intervals_of_runs: dict[str, str | int]) -> None:
    assert intervals_of_runs["waits"] is True


def test_data_interval_is_taken_only_from_the_schedule_when_it_is_not_one_of_its_intervals(
    intervals_of_runs: dict[str, str | int],
) -> None:
    assert intervals_of_runs["data interval"] == "2026-11-20T03:00:00Z/2026-11-20T04:00:00Z"
    assert intervals_of_runs["no interval"] == 64
    assert intervals_of_runs["earlier schedule"] == "2026-11-20T05:15:00Z/2026-11-20T05:30:00Z"


def test_decision_is_carried_out_with_the_digest_of_what_was_shown(run_script: RunScript) -> None:
    told = {"by": "airflow ada", "reason": "moved"}
    *carried, unanswered = run_script(CARRY_OUT)
    assert carried == [{"digest": "5e21", **told}, {"digest": "", **told}]
    said = (
        "nest_cameras: approve has no result: it was marked as successful by hand — clear the task approve with those"
    )
    assert unanswered == ["AirflowFailException", f"{said} after it"]


MARKED_BY_HAND = """
import json, sys
from datetime import UTC, datetime
from types import SimpleNamespace
sys.path.insert(0, "dags")
import intervals
tasks = vars(intervals)["interval__nest_cameras"].task_dict
at = lambda hour: datetime(2026, 11, 20, hour, tzinfo=UTC)
run = SimpleNamespace(run_type="scheduled", data_interval_start=at(3), data_interval_end=at(4), logical_date=at(3))
context = {"dag_run": run, "params": {}}
context["ti"] = SimpleNamespace(id="ti", xcom_push=lambda **_: None, get_template_context=lambda: context)
found = {}
for name in sys.argv[1:]:
    task = tasks[name]
    try:
        if hasattr(task, "python_callable"):
            task.python_callable(None)
        else:
            task.attempt = None
            task.execute(context)
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
print("RESULT" + json.dumps(found))
"""


def test_task_fails_at_once_and_names_the_one_to_clear_when_that_was_marked_as_successful(
    run_script: RunScript,
) -> None:
    of_pin = ("build_interval", "reconcile", "publish", "announce")
    of_announce = ("announce_tables.nest_cameras", "announce_tables.nest_cameras_hourly_counts")
    found = run_script(MARKED_BY_HAND, *of_pin, *of_announce)
    assert set(found) == {*of_pin, *of_announce}
    for name, (kind, text) in found.items():
        missing = "pin_ranges" if name in of_pin else "announce"
        # No retry gives a result.
        assert kind == "AirflowFailException", text
        assert f"nest_cameras: {missing} has no result: it was marked as successful by hand" in text
        assert f"clear the task {missing} " in text


ANNOUNCED = """
import json, sys
from collections import defaultdict
from types import SimpleNamespace
sys.path.insert(0, "dags")
import intervals
from airflow.sdk.exceptions import AirflowSkipException
from include.airflow import tasks
row = lambda table, date: {"table": table, "partition": f"date={date}/interval=2026-11-20T05"}
verdict = SimpleNamespace(exit_code=0, pipeline="nest_cameras", records={}, reconciliation={}, report="",
    interval={"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"},
    registered=[row("nest_cameras", "2026-11-21")])
pinned = SimpleNamespace(id=1)
tasks.steps = SimpleNamespace(announce=lambda attempt: verdict)
tasks.log_step = lambda *given, **named: None
tasks.completeness = lambda pipeline: SimpleNamespace(as_json=lambda: {"until": None})
tasks.attempts = SimpleNamespace(load_attempt=lambda attempt: SimpleNamespace(pinned=pinned))
tasks.pins = SimpleNamespace(find_interval=lambda pipeline, begin: pinned)
tasks.prove_registered = lambda pipeline, interval: "proof"

def state(registered, dropped):
    tasks.revisions = SimpleNamespace(
        registered_of_interval=lambda _: [SimpleNamespace(as_registered=lambda at=each: at) for each in registered],
        no_longer_registered=lambda interval: [tuple(each.values()) for each in dropped])

gone = [row("nest_cameras", "2026-11-20"), row("nest_cameras_hourly_counts", "2026-11-20")]
later = [row("nest_cameras", "2026-11-22")], [row("nest_cameras", "2026-11-21"), *gone]
found = {}
# The third time, another run is registered before the tables' tasks.
for dropped, meanwhile in ((gone, None), (gone[:1], None), (gone, later)):
    state(verdict.registered, dropped)
    announced = tasks.announce_registered(7)
    if meanwhile:
        state(*meanwhile)
    for name in sys.argv[1:]:
        events = defaultdict(lambda: SimpleNamespace(add_partitions=lambda key: None, add=lambda asset, extra: None))
        task = vars(intervals)["interval__nest_cameras"].task_dict[f"announce_tables.{name}"]
        try:
            task.python_callable(announced, outlet_events=events)
        except AirflowSkipException:
            continue
        extra = next(event.extra for event in events.values() if hasattr(event, "extra"))
        told = {kind: [each["partition"][5:15] for each in extra[kind]] for kind in ("partitions", "dropped")}
        found.setdefault(name, []).append(told)
print("RESULT" + json.dumps(found))
"""


def test_table_is_announced_with_what_was_dropped_when_the_interval_has_fewer_partitions_than_before(
    run_script: RunScript,
) -> None:
    found = run_script(ANNOUNCED, "nest_cameras", "nest_cameras_hourly_counts")
    moved, gone = (
        {"partitions": ["2026-11-21"], "dropped": ["2026-11-20"]},
        {"partitions": [], "dropped": ["2026-11-20"]},
    )
    replaced = {"partitions": ["2026-11-22"], "dropped": ["2026-11-21", "2026-11-20"]}
    assert found["nest_cameras"] == [moved, moved, replaced]
    # The second time, the view never had a row of the interval.
    assert found["nest_cameras_hourly_counts"] == [gone, gone]


TIMEOUTS = """
import json, sys
from dataclasses import replace
sys.path.insert(0, "dags")
import intervals
from include.pipelines import load_pipeline
from include.times import every
found = {}
for duration in sys.argv[1:]:
    dag = intervals.interval_dag(replace(load_pipeline("nest_cameras"), schedule=every(duration)))
    hours = {name: task.execution_timeout.total_seconds() / 3600 for name, task in dag.task_dict.items()
        if getattr(task, "execution_timeout", None)}
    limited = [hours[each] for each in ("build_interval", "publish", "announce")]
    found[duration] = limited, dag.doc_md, dag.max_active_runs
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def of_schedules(run_script: RunScript) -> dict[str, Any]:
    found: dict[str, Any] = run_script(TIMEOUTS, "1m", "15m", "1h", "6h", "1d")
    return found


def test_driver_may_take_as_long_as_its_interval_when_that_is_longer_than_an_hour(of_schedules: dict[str, Any]) -> None:
    hours = {duration: each for duration, (each, _, _) in of_schedules.items()}
    assert hours == {"1m": [1, 1, 1], "15m": [1, 1, 1], "1h": [1, 1, 1], "6h": [6, 6, 1], "1d": [24, 24, 1]}
    assert "ended after 6 hours" in of_schedules["6h"][1]


def test_intervals_of_a_week_may_be_under_way_when_each_waits_for_a_person(of_schedules: dict[str, Any]) -> None:
    most = {duration: each for duration, (_, _, each) in of_schedules.items()}
    assert most == {"1m": 672, "15m": 672, "1h": 168, "6h": 28, "1d": 24}
    assert "Up to 28 intervals are under" in of_schedules["6h"][1]
