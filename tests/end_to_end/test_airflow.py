"""Airflow runs it: a stream launched and watched, intervals cleared and backfilled, consumers, a driver that dies."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import psycopg2
import pytest
from confluent_kafka.admin import AdminClient

from include.airflow.backoff import GIVE_UP_AFTER
from tests.conftest import REPOSITORY, Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import POLL, state_once_ended, unpause_without_schedule, wait_for_success
from tests.support.airflow_ui import PAGES, api_of, ui_of
from tests.support.busier import busier_before

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.own_drivers]

# The fourth last hour and on: the last one is run by the schedule itself, and holds nothing.
START = last_hours(4)
STREAM, INTERVAL, DAILY = "stream__nest_cameras", "interval__nest_cameras", "daily__nest_cameras"
EVENTS = 3000
TABLES = ("nest_cameras", "nest_cameras_hourly_counts")

OF_BACKFILLS = "SELECT count(*) FROM attempts WHERE run_by LIKE 'airflow backfill%' AND exit_code = 0"

CONSUMERS = """
from airflow.sdk import (
    DAG, Asset, DayWindow, MinimumCount, PartitionedAssetTimetable, RollupMapper, StartOfDayMapper, task,
)

TABLE = Asset(name="lake.nest_cameras")
BY_DAY = StartOfDayMapper()

def consumer(name, schedule):
    with DAG(name, schedule=schedule, is_paused_upon_creation=False, catchup=False) as dag:
        @task
        def look(dag_run=None, triggering_asset_events=None):
            return [event.extra for event in triggering_asset_events[TABLE]]
        look()
    return dag

unkeyed = consumer("consumer__unkeyed", [TABLE])
by_day = consumer("consumer__by_day", PartitionedAssetTimetable(assets=TABLE, default_partition_mapper=BY_DAY))
roll_up = consumer("consumer__roll_up", PartitionedAssetTimetable(
    assets=TABLE,
    # Of the day's 24 keys one is enough; it must be one of them.
    default_partition_mapper=RollupMapper(upstream_mapper=BY_DAY, window=DayWindow(), wait_policy=MinimumCount(1)),
))
"""
"""A consumer's DAGs on a table: one for each kind of event, and one that rolls up."""


def committed(home: Home, query: str) -> int:
    return int(home.ledger(f"SELECT coalesce(sum(next_offset), 0) FROM positions WHERE query = '{query}'")[0][0])


def registered(home: Home) -> list[tuple[Any, ...]]:
    return home.ledger(
        "SELECT table_name, table_partition, id, location, content_hash, registered_at FROM revisions "
        "WHERE state = 'registered' ORDER BY table_name, table_partition",
    )


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tidemark's DAGs, and the consumers' beside them."""
    folder = tmp_path_factory.mktemp("dags")
    (folder / "tidemark").symlink_to(REPOSITORY / "dags")
    (folder / "consumers.py").write_text(CONSUMERS)
    return folder


@pytest.fixture(scope="module")
def airflow(home: Home, dags: Path) -> Iterator[AirflowApi]:
    # Two task slots: what waits must not keep them from what it waits for.
    extra = {"AIRFLOW__CORE__PARALLELISM": "2", "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    # The stream has a JVM of its own; the intervals, one after the other, have the one that stays.
    home.run("up", "spark")
    home.run("up", "airflow", TIDEMARK_ARCHIVE_WAIT="10m", TIDEMARK_UNUSUAL="warn", **extra)
    api = api_of(home)
    wait_for("the DAGs", lambda: {STREAM, INTERVAL, DAILY} <= api.dag_ids(), 120, every=POLL)
    assert api.import_errors() == []
    api.set_paused(DAILY, False)
    home.produce("nest_cameras", EVENTS, START, "3h", bad=0.02)
    home.run("produce", "isp_hits", "--events", "10", "--start", iso(START), "--span", "3h")
    yield api
    api.set_paused(STREAM, True)
    home.run("stream", "nest_cameras", "--stop", expect=None)
    for (pid,) in home.ledger("SELECT pid FROM stream_launches WHERE pid IS NOT NULL"):
        if psutil.pid_exists(pid):
            psutil.wait_procs([psutil.Process(pid)], timeout=30)


@pytest.fixture(scope="module")
def launched(airflow: AirflowApi) -> dict[str, Any]:
    """The run of a backfilled interval: it waited before Airflow launched the stream, as another did, and has ended."""
    of_isp = INTERVAL.replace("nest_cameras", "isp_hits")
    airflow.trigger(of_isp, **{"from": iso(START), "to": iso(START + timedelta(hours=1))})
    backfill = airflow.backfill(INTERVAL, iso(START), iso(START))
    for dag in (of_isp, INTERVAL):
        # The last hour's run, which has no records, would only occupy task slots.
        unpause_without_schedule(airflow, dag)
    for dag in (of_isp, INTERVAL):
        wait_for(f"{dag} to wait", lambda d=dag: is_waiting(airflow, d), every=POLL)
    airflow.set_paused(STREAM, False)
    [run] = [each["dag_run_id"] for each in airflow.runs(INTERVAL) if each["run_type"] == "backfill"]
    state = wait_for("the run", lambda: state_once_ended(airflow, INTERVAL, run), 480, every=POLL)
    ended = {"run": run, "state": state, "tasks": airflow.tasks(INTERVAL, run), "backfill": backfill}
    # The stream that these wait for is not launched, and Airflow would wait for them when it ends.
    airflow.set_paused(of_isp, True)
    for each in airflow.runs(of_isp):
        airflow.fail_run(of_isp, each["dag_run_id"])
    return ended


@pytest.fixture(scope="module")
def failed(home: Home, airflow: AirflowApi, launched: dict[str, Any]) -> tuple[str, int]:
    """A launch of the paused stream and its driver's pid, whose run was marked failed while it was watched."""
    run = wait_for("the trigger to watch the driver", lambda: airflow.watched_run(STREAM), every=POLL)
    launch, pid = home.ledger("SELECT id, pid FROM stream_launches ORDER BY launched_at DESC LIMIT 1")[0]
    airflow.set_paused(STREAM, True)
    airflow.fail_run(STREAM, run)
    return launch, pid


def run_backfill(api: AirflowApi, first: str, last: str, *, again: bool = False) -> None:
    """A backfill over the three intervals, to its end; every run of it succeeded."""
    backfill = api.backfill(INTERVAL, first, last, again=again)
    wait_for("the backfill", lambda: api.backfill_ended(backfill), 1200, every=POLL)
    runs = [run for run in api.runs(INTERVAL) if run["run_type"] == "backfill"]
    assert [run["state"] for run in runs] == ["success"] * 3, [api.tasks(INTERVAL, r["dag_run_id"]) for r in runs]


def is_waiting(api: AirflowApi, dag: str) -> bool:
    """Whether a run of an interval's DAG waits for the archive."""
    states = [api.tasks(dag, run["dag_run_id"]).get("pin_ranges") for run in api.runs(dag)]
    return "up_for_reschedule" in states


def table_asset_id(api: AirflowApi, run: str) -> int:
    """Airflow's id of the asset of the archive table, of which the run told."""
    return int(next(event["asset_id"] for event in api.asset_events(run) if event["name"] == "lake.nest_cameras"))


def check_rows(home: Home, expected: audit.Fates) -> None:
    """What is registered holds each good record once."""
    table = audit.read_parquet(row[3] for row in registered(home) if row[0] == "nest_cameras")
    assert set(audit.identities(table).values()) == {1}
    assert set(audit.identities(table)) == expected.rows.keys()


def test_stream_is_launched_and_interval_registered_when_as_many_intervals_as_task_slots_wait(
    home: Home, launched: dict[str, Any]
) -> None:
    assert launched["state"] == "success", launched["tasks"]
    assert home.services["spark"]["detail"] != "applications served: 0"
    label = f"interval={START.strftime('%Y-%m-%dT%H')}"
    assert {table for table, partition, *_ in registered(home) if label in partition} == set(TABLES)
    ranges = home.json("ranges", "nest_cameras", "--from", iso(START), "--json")
    records = audit.in_ranges(audit.read_topic(home.kafka, "nest-logs"), ranges)
    check_rows(home, audit.expected(records))
    assert len(records) > EVENTS / 4


def test_consumers_of_keyed_and_unkeyed_events_run_when_an_interval_is_registered(
    airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    key = START.strftime("%Y-%m-%dT%H:%M:%S")
    emitted = [(event["name"], event["partition_key"]) for event in airflow.asset_events(launched["run"])]
    assets = ["intervals.nest_cameras", *(f"lake.{table}" for table in TABLES)]
    assert sorted(emitted, key=str) == sorted(((asset, k) for asset in assets for k in (None, key)), key=str)

    def consumed(dag: str) -> dict[str, Any] | None:
        return next((run for run in airflow.runs(dag) if run["state"] == "success"), None)

    runs = {
        dag: wait_for(dag, lambda d=dag: consumed(f"consumer__{d}"), every=POLL)
        for dag in ("unkeyed", "by_day", "roll_up")
    }
    day = START.strftime("%Y-%m-%d")
    assert {dag: run["partition_key"] for dag, run in runs.items()} == {"unkeyed": None, "by_day": day, "roll_up": day}


def test_day_is_summed_up_when_the_last_of_its_24_intervals_is_told_of_and_not_before(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    event = next(e for e in airflow.asset_events(launched["run"]) if e["name"] == "intervals.nest_cameras")
    midnight = START.replace(hour=0)
    others = [midnight + timedelta(hours=hour) for hour in range(24) if hour != START.hour]
    for begin in others[:-1]:
        airflow.emit(event["asset_id"], begin.strftime("%Y-%m-%dT%H:%M:%S"))
    # The scheduler has looked at these, since it ran what was emitted after them.
    consumer = "consumer__roll_up"
    runs = len(airflow.runs(consumer))
    airflow.emit(table_asset_id(airflow, launched["run"]), "2020-01-01T00:00:00")
    wait_for("the scheduler", lambda: len(airflow.runs(consumer)) > runs, 60, every=POLL)
    assert airflow.runs(DAILY) == []
    airflow.emit(event["asset_id"], others[-1].strftime("%Y-%m-%dT%H:%M:%S"))
    [run] = wait_for("the day's run", lambda: airflow.runs(DAILY), 60, every=POLL)
    assert run["partition_key"] == START.strftime("%Y-%m-%d")
    # The manually emitted event registers nothing: the ledger decides, not Airflow's event.
    looked = {"roll_up": "up_for_retry"}
    wait_for("it to look", lambda: airflow.tasks(DAILY, run["dag_run_id"]) == looked, 90, every=POLL)
    airflow.fail_run(DAILY, run["dag_run_id"])


def token_of_role(home: Home, role: str | None) -> str:
    """A token as Airflow's simple auth manager makes them, for a user of that role."""
    claims = {"sub": "eve", "role": role, "aud": "apache-airflow", "iat": time.time(), "nbf": time.time() - 9}
    secret = (home.path / "airflow" / "jwt.secret").read_text()
    return jwt.encode({**claims, "exp": time.time() + 600, "jti": uuid.uuid4().hex}, secret, algorithm="HS512")


def test_page_inside_airflow_is_shown_when_airflow_lets_the_visitor_read_the_dag(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    password = str(psycopg2.extensions.parse_dsn(home.database)["password"])
    with httpx.Client(base_url=f"{airflow.address}/tidemark", timeout=60) as client:
        page = client.get("/", headers={"Accept": "text/html"})
        assert page.status_code == 303
        assert "/login" in page.headers["location"]
        for path in ("/?format=json", "/events", "/metrics", "/pipelines/nest_cameras"):
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers={"Authorization": "Bearer nonsense"}).status_code == 401, path
        client.cookies.set("_token", token_of_role(home, None))
        told = client.get("/?format=json").json()
        assert (told["streams"], told["alerts"], told["alerts_left_out"]) == ([], [], 0)
        assert client.get("/pipelines/nest_cameras").status_code == 403
        assert "nest_cameras" not in client.get("/metrics").text
        client.cookies.set("_token", token_of_role(home, "viewer"))
        told = client.get("/pipelines/nest_cameras?format=json")
        shown = client.get("/pipelines/nest_cameras")
        assert "content-security-policy" in shown.headers
        assert "/tidemark/static/frame.css" in shown.text
        assert 'tidemark_committed_offset{partition="0",pipeline="nest_cameras"' in client.get("/metrics").text
    stream = told.json()
    assert {each["query"] for each in stream["queries"]} == {"archive", "hourly_counts"}
    assert stream["state"]["committed_at"]
    assert stream["restarts"]
    assert any("micro-batch" in line for line in stream["log"]["lines"])
    assert password not in shown.text + told.text


def test_nothing_is_built_when_a_dry_run_is_triggered(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    before = registered(home)
    airflow.set_paused(INTERVAL, False)
    run = airflow.trigger(INTERVAL, **{"from": iso(START), "to": iso(START + timedelta(hours=1)), "dry_run": True})
    check_dry_run(airflow, run)
    assert registered(home) == before


def check_dry_run(airflow: AirflowApi, run: str) -> None:
    """Wait for the run's end: it tells what it would do, and does nothing of it."""
    wait_for_success(airflow, INTERVAL, run, 240)
    assert "would read from kafka: nest-logs-" in airflow.log(INTERVAL, run, "pin_ranges")
    assert airflow.tasks(INTERVAL, run)["build_interval"] == "skipped"


@pytest.mark.slow
@pytest.mark.browser
def test_dry_run_is_triggered_when_a_person_fills_in_the_form(
    home: Home, airflow: AirflowApi, launched: dict[str, Any], browser: Any
) -> None:
    ui = ui_of(home, browser)
    ui.log_in(PAGES)
    with ui.frame():
        assert "records in quarantine" in ui.text("#stream-nest_cameras .state")
        assert len(ui.text("#streams").split("What to do:")) > 1
        ui.go_to(f"/intervals/nest_cameras/{START:%Y-%m-%dT%H}")
        assert "registered" in ui.text("main")
    ui.open_grid(INTERVAL)
    cell = f"[data-testid='grid-{launched['run']}-publish'] [data-testid=task-state-badge]"
    ui.wait("the grid", f"document.querySelector({cell!r})")
    before, known = registered(home), {run["dag_run_id"] for run in airflow.runs(INTERVAL)}
    airflow.set_paused(INTERVAL, False)
    ui.begin_form()
    ui.open_section("Which interval")
    ui.fill_time("From", START)
    ui.fill_time("To", START + timedelta(hours=1))
    ui.open_section("How")
    ui.switch("Dry run")
    ui.submit()
    [run] = wait_for(
        "the run", lambda: [r for r in airflow.runs(INTERVAL) if r["dag_run_id"] not in known], 60, every=POLL
    )
    assert run["conf"] == {
        "from": START.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "to": (START + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "source": "kafka",
        "repin": False,
        "new_references": False,
        "dry_run": True,
        "build_missing": None,
    }
    # The page would go on drawing meanwhile; what it complained of so far stays in the browser's log.
    browser.get("about:blank")
    check_dry_run(airflow, run["dag_run_id"])
    assert registered(home) == before
    assert ui.complaints() == []


def test_hour_of_a_backfill_is_built_once_when_it_waited_for_the_stream(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    wait_for("the backfill", lambda: airflow.backfill_ended(launched["backfill"]), 120, every=POLL)
    assert home.ledger(OF_BACKFILLS) == [(1,)]
    # The schedule adds the hour in which the services started, should it end meanwhile.
    built = "SELECT from_time FROM intervals WHERE id IN (SELECT interval_id FROM attempts) AND from_time < %s"
    assert home.ledger(built, START + timedelta(hours=4)) == [(START,)]


@pytest.mark.parametrize(
    ("task", "downstream"),
    [
        pytest.param("build_interval", True, marks=pytest.mark.slow),
        pytest.param("build_interval", False, marks=pytest.mark.slow),
        pytest.param("publish", True),
        pytest.param("pin_ranges", True, marks=pytest.mark.slow),
        pytest.param("announce", False, marks=pytest.mark.slow),
    ],
)
def test_same_partitions_stay_registered_when_a_task_of_a_finished_run_is_cleared(
    home: Home, airflow: AirflowApi, launched: dict[str, Any], task: str, downstream: bool
) -> None:
    before, run = registered(home), launched["run"]
    airflow.set_paused(INTERVAL, False)
    airflow.clear(INTERVAL, run, task, downstream=downstream)
    wait_for_success(airflow, INTERVAL, run, 480)
    assert registered(home) == before
    for table, partition, revision, *_ in before:
        explained = home.json("explain", table, partition, "--json")
        assert explained["revision"] == revision
    examined = home.run("doctor", "--json", expect=None)
    assert [each for each in json.loads(examined.stdout)["findings"] if not each["ok"]] == []


@pytest.mark.slow
def test_run_has_the_oldest_missing_interval_built_when_it_asks_for_one(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    wait_for("the stream to catch up", lambda: committed(home, "archive") == EVENTS == committed(home, "hourly_counts"))
    airflow.set_paused(INTERVAL, False)
    at = [START + timedelta(hours=hour) for hour in range(4)]
    # The last of the hours: two are pinned on the way to it, and nobody builds them.
    asking = airflow.trigger(
        INTERVAL, **{"from": iso(at[3]), "to": iso(at[3] + timedelta(hours=1)), "build_missing": 1}
    )
    run = f"missing__{iso(at[1])}"
    wait_for("the run of the missing interval", lambda: run in {each["dag_run_id"] for each in airflow.runs(INTERVAL)})
    for each in (asking, run):
        wait_for_success(airflow, INTERVAL, each, 480)
    assert {state for task, state in airflow.tasks(INTERVAL, run).items() if "missing" in task} == {
        "success",
        "skipped",
    }
    attempts = home.ledger(
        "SELECT i.from_time FROM attempts a JOIN intervals i ON i.id = a.interval_id "
        f"WHERE a.run_by = 'airflow {run}' AND a.exit_code = 0",
    )
    assert attempts == [(at[1],)]
    built = {partition.split("interval=")[1] for _, partition, *_ in registered(home)}
    assert built == {each.strftime("%Y-%m-%dT%H") for each in at[:2]}
    # One was requested; the other is still listed.
    [missing] = home.json("status", "--json")["missing"]
    assert (missing["count"], missing["from"]) == (1, iso(at[2]))


@pytest.mark.slow
def test_backfill_registers_three_partitions_once(home: Home, airflow: AirflowApi, launched: dict[str, Any]) -> None:
    wait_for("the stream to catch up", lambda: committed(home, "archive") == EVENTS == committed(home, "hourly_counts"))
    last = START + timedelta(hours=2)
    airflow.set_paused(INTERVAL, False)
    [(before,)] = home.ledger(OF_BACKFILLS)
    run_backfill(airflow, iso(START), iso(last))
    first = registered(home)
    assert [(table, partition.split("interval=")[1]) for table, partition, *_ in first if table == "nest_cameras"] == [
        ("nest_cameras", (START + timedelta(hours=h)).strftime("%Y-%m-%dT%H")) for h in range(3)
    ]
    check_rows(home, audit.expected(audit.read_topic(home.kafka, "nest-logs")))
    # The first hour had been backfilled before.
    assert home.ledger(OF_BACKFILLS) == [(before + 2,)]
    run_backfill(airflow, iso(START), iso(last), again=True)
    assert home.ledger(OF_BACKFILLS) == [(before + 5,)]
    assert registered(home) == first


@pytest.mark.slow
def test_interval_that_only_warns_waits_without_keeping_others_and_ends_when_the_command_approves_it(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    wait_for("the stream to catch up", lambda: committed(home, "archive") == EVENTS == committed(home, "hourly_counts"))
    airflow.set_paused(INTERVAL, False)
    # What the DAG runs by its schedule would find itself unusual, too, and ask.
    wait_for("the schedule's run", lambda: any(each["run_type"] == "scheduled" for each in airflow.runs(INTERVAL)), 120)
    wait_for("it to end", lambda: all(each["state"] in ("success", "failed") for each in airflow.runs(INTERVAL)), 480)
    before, bounds = registered(home), {"from": iso(START), "to": iso(START + timedelta(hours=1))}
    with busier_before(home, "nest_cameras", START):
        with_busier = registered(home)
        run = airflow.trigger(INTERVAL, **bounds)
        wait_for("it to ask", lambda: airflow.tasks(INTERVAL, run)["publish"] == "deferred", 480)
        assert registered(home) == with_busier
        other = airflow.trigger(INTERVAL, **bounds, dry_run=True)
        wait_for_success(airflow, INTERVAL, other, 240)
        assert airflow.tasks(INTERVAL, run)["publish"] == "deferred"
        home.run("approve", "nest_cameras", "--from", bounds["from"], "--to", bounds["to"], "--reason", "a quiet hour")
        wait_for_success(airflow, INTERVAL, run, 480)
    assert registered(home) == before
    assert "intervals.nest_cameras" in {event["name"] for event in airflow.asset_events(run)}
    [(approved, by, reason)] = home.ledger("SELECT approved, decided_by, reason FROM approvals")
    assert (approved, reason) == (True, "a quiet hour")
    assert "@" in by


@pytest.mark.slow
def test_run_by_hand_without_a_logical_date_takes_the_last_complete_interval(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    wait_for("the stream to catch up", lambda: committed(home, "archive") == EVENTS == committed(home, "hourly_counts"))
    airflow.set_paused(INTERVAL, False)
    before = registered(home)
    run = airflow.trigger(INTERVAL)
    wait_for_success(airflow, INTERVAL, run, 240)
    # If an hour has passed meanwhile, its partition was added.
    assert set(before) <= set(registered(home))
    # The interval has no records: it is complete, and no table has a partition of it.
    assert {event["name"] for event in airflow.asset_events(run)} == {"intervals.nest_cameras"}
    tasks = airflow.tasks(INTERVAL, run)
    assert {tasks[f"announce_tables.{table}"] for table in TABLES} == {"skipped"}


@pytest.mark.slow
def test_operators_are_alerted_when_a_task_fails_for_good(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    # Half a pair of parameters: refused in the first task, before anything is read.
    run = airflow.trigger(INTERVAL, **{"from": iso(START)})
    wait_for("the run", lambda: next(r["state"] for r in airflow.runs(INTERVAL) if r["dag_run_id"] == run) == "failed")
    wait_for("the topic", lambda: "tidemark-alerts" in audit.topics(home.kafka), 60)
    every = [json.loads(r.value or b"") for r in audit.read_topic(home.kafka, "tidemark-alerts").values()]
    # The interval that waits without a stream also gives up at some time. A question names no task.
    alerts = [alert for alert in every if alert["pipeline"] == "nest_cameras" and "task" in alert]
    assert [(a["pipeline"], a["dag"], a["run"], a["task"]) for a in alerts] == [
        ("nest_cameras", INTERVAL, run, "pin_ranges")
    ]
    assert "only one of the parameters from and to is given" in alerts[0]["error"]


@pytest.mark.slow
def test_driver_comes_back_with_nothing_doubled_when_it_is_killed(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    def driver() -> tuple[int, int] | None:
        rows = home.ledger("SELECT token, holder FROM writers WHERE holder <> ''")
        return (rows[0][0], int(rows[0][1].split(":")[1])) if rows else None

    token, pid = wait_for("a driver", driver)
    os.kill(pid, signal.SIGKILL)
    home.run("produce", "nest_cameras", "--events", "500", "--seed", "2", "--start", iso(START), "--span", "1h")
    wait_for("the next driver's commits", lambda: committed(home, "archive") == EVENTS + 500, 180)
    assert driver() is not None
    assert driver()[0] > token  # type: ignore[index]
    files = home.ledger("SELECT path FROM landing_files WHERE fate = 'archived'")
    landed = audit.read_files(home.lake / path for (path,) in files)
    assert set(audit.identities(landed).values()) == {1}
    ranges = home.ledger(
        "SELECT r.topic_partition, r.from_offset, r.until_offset FROM micro_batch_ranges r JOIN micro_batches b "
        "ON b.id = r.micro_batch_id WHERE b.query = 'archive' ORDER BY 1, 2",
    )
    at: dict[int, int] = {}
    for partition, begin, until in ranges:
        assert at.get(partition, 0) == begin
        at[partition] = until
    assert sum(at.values()) == EVENTS + 500


def test_driver_finishes_its_micro_batch_when_the_paused_stream_is_marked_failed(
    home: Home, failed: tuple[str, int]
) -> None:
    launch, pid = failed
    end = f"SELECT exit_code FROM stream_launches WHERE id = '{launch}' AND exit_code IS NOT NULL"
    assert wait_for("the driver's end", lambda: home.ledger(end)) == [(0,)]
    wait_for("its process to go", lambda: not psutil.pid_exists(pid), 30)
    assert home.ledger("SELECT holder FROM writers") == [("",)]


@pytest.mark.slow
def test_driver_started_by_hand_is_adopted_until_it_ends_though_the_last_launch_ended(
    home: Home, airflow: AirflowApi, failed: tuple[str, int]
) -> None:
    wait_for("the failed launch's lease to go", lambda: home.ledger("SELECT holder FROM writers") == [("",)], 120)
    launches = "SELECT count(*) FROM stream_launches"
    before, runs = home.ledger(launches), len(airflow.runs(STREAM))
    by_hand = home.start("stream", "nest_cameras")
    try:
        wait_for("the driver's lease", lambda: home.ledger("SELECT 1 FROM writers WHERE holder <> ''"))
        airflow.set_paused(STREAM, False)
        wait_for("the next run", lambda: len(airflow.runs(STREAM)) > runs)
        run = airflow.runs(STREAM)[0]["dag_run_id"]
        wait_for("its trigger", lambda: airflow.tasks(STREAM, run) == {"stream": "deferred"})
        landed = committed(home, "archive")
        home.run("produce", "nest_cameras", "--events", "200", "--seed", "3", "--start", iso(START), "--span", "1h")
        wait_for("the adopted driver's commits", lambda: committed(home, "archive") == landed + 200)
        assert home.ledger(launches) == before
        assert airflow.runs(STREAM)[0]["dag_run_id"] == run
        assert airflow.tasks(STREAM, run) == {"stream": "deferred"}
        by_hand.send_signal(signal.SIGTERM)
        assert by_hand.wait(timeout=120) == 0
        wait_for("Airflow to launch one itself", lambda: home.ledger(launches) != before)
        assert next(r["state"] for r in airflow.runs(STREAM) if r["dag_run_id"] == run) == "success"
    finally:
        end_of(by_hand)


@pytest.mark.slow
def test_stream_is_paused_with_one_alert_when_its_topic_was_recreated(
    home: Home, airflow: AirflowApi, launched: dict[str, Any]
) -> None:
    stream = STREAM.replace("nest_cameras", "isp_hits")
    home.run("stream", "isp_hits", "--until-caught-up")
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.delete_topics(["isp-hits"])["isp-hits"].result(30)
    wait_for("the topic to go", lambda: "isp-hits" not in audit.topics(home.kafka), 60)
    home.run("produce", "isp_hits", "--events", "10")
    airflow.set_paused(stream, False)
    wait_for("Airflow to give up", lambda: airflow.is_paused(stream), 300)
    assert [run["state"] for run in airflow.runs(stream)] == ["failed"]
    ends = home.ledger("SELECT exit_code FROM stream_launches WHERE pipeline = 'isp_hits'")
    assert ends == [(4,)] * GIVE_UP_AFTER
    every = [json.loads(r.value or b"") for r in audit.read_topic(home.kafka, "tidemark-alerts").values()]
    alerts = [alert["error"] for alert in every if alert.get("dag") == stream]
    assert len(alerts) == 1
    assert "./tidemark adopt isp_hits isp-hits" in alerts[0]
    assert f"then unpause {stream}" in alerts[0]
