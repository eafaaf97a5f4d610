"""Airflow hands drivers over to YARN: streams adopted, killed and stopped, intervals registered, nothing doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg2
import pytest

from include.spark import yarn
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import trigger_hour, wait_for_success
from tests.support.airflow_ui import api_of
from tests.support.on_yarn import (
    ON_YARN,
    PATIENCE,
    TOPICS,
    airflow_up,
    check,
    committed,
    driver_container,
    end_of,
    launches,
    leases,
    produce,
    up,
)

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.own_drivers, pytest.mark.faults, pytest.mark.slow]

START = last_hours(3)
EVENTS = 1500
PIPELINES = tuple(TOPICS)


@pytest.fixture(scope="module")
def manager(home: Home) -> str:
    """Address of the resource manager."""
    return up(home)


@pytest.fixture(scope="module")
def airflow(home: Home, manager: str) -> Iterator[AirflowApi]:
    with airflow_up(home, manager, *PIPELINES) as api:
        yield api


@pytest.fixture(scope="module")
def streaming(home: Home, airflow: AirflowApi) -> dict[str, str]:
    """The applications of both streams, which have archived everything."""
    for pipeline in PIPELINES:
        produce(home, pipeline, EVENTS, seed=1, start=START)
        airflow.set_paused(f"stream__{pipeline}", False)
    for pipeline in PIPELINES:
        wait_for(f"{pipeline} on YARN", lambda p=pipeline: committed(home, p) == EVENTS, PATIENCE)
    return {pipeline: launches(home, pipeline)[-1][1] for pipeline in PIPELINES}


def test_streams_run_in_containers_and_no_secret_is_in_a_command_line(
    home: Home, manager: str, streaming: dict[str, str]
) -> None:
    secret = psycopg2.extensions.parse_dsn(home.database)["password"]
    for pipeline, application in streaming.items():
        found = yarn.find(manager, application)
        assert found is not None
        assert found.state == "RUNNING"
        container = driver_container(application)
        assert any("stream.py" in " ".join(process.cmdline()) for process in container), pipeline
        assert not [process for process in container if secret in " ".join(process.cmdline())]
        check(home, pipeline, EVENTS)
    assert leases(home) == set(PIPELINES)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_interval_is_built_and_registered_by_drivers_on_the_cluster(
    home: Home, airflow: AirflowApi, manager: str, streaming: dict[str, str], pipeline: str
) -> None:
    dag = f"interval__{pipeline}"
    airflow.set_paused(dag, False)
    run = trigger_hour(airflow, dag, START)
    wait_for_success(airflow, dag, run, PATIENCE)
    registered = home.ledger(f"SELECT location FROM revisions WHERE state = 'registered' AND table_name = '{pipeline}'")
    ranges = home.json("ranges", pipeline, "--from", iso(START), "--json")
    records = audit.in_ranges(audit.read_topic(home.kafka, TOPICS[pipeline]), ranges)
    assert len(records) == EVENTS
    table = audit.read_parquet(location for (location,) in registered)
    if pipeline == "nest_cameras":
        assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
    assert set(audit.identities(table).values()) == {1}
    log = airflow.log(dag, run, "build_interval")
    assert f"the driver is {manager}/cluster/app/application_" in log
    assert f"{pipeline} {iso(START)}/" in log
    secret = psycopg2.extensions.parse_dsn(home.database)["password"]
    assert secret not in log
    assert secret not in airflow.log(dag, run, "publish")


def test_driver_is_adopted_when_airflow_comes_back(home: Home, airflow: AirflowApi, streaming: dict[str, str]) -> None:
    before = launches(home, "nest_cameras")
    home.run("down", "airflow")
    produce(home, "nest_cameras", 300, seed=2, start=START)
    wait_for("commits without Airflow", lambda: committed(home, "nest_cameras") == EVENTS + 300, PATIENCE)
    home.run("up", "airflow", **ON_YARN)
    api = api_of(home)

    def is_watched() -> bool:
        runs = [each["dag_run_id"] for each in api.runs("stream__nest_cameras") if each["state"] == "running"]
        return any(api.tasks("stream__nest_cameras", run) == {"stream": "deferred"} for run in runs)

    wait_for("a run to watch it", is_watched, PATIENCE)
    assert launches(home, "nest_cameras") == before


def test_killed_container_is_replaced_and_nothing_is_doubled(home: Home, streaming: dict[str, str]) -> None:
    api = api_of(home)
    (_, application), count = launches(home, "isp_hits")[-1], len(launches(home, "isp_hits"))
    for process in driver_container(application):
        process.kill()
    produce(home, "isp_hits", 300, seed=3, start=START)
    wait_for("the next application's commits", lambda: committed(home, "isp_hits") == EVENTS + 300, PATIENCE)
    assert len(launches(home, "isp_hits")) > count
    assert not api.is_paused("stream__isp_hits")
    check(home, "isp_hits", EVENTS + 300)


def test_driver_finishes_its_micro_batch_when_its_run_is_marked_failed(
    home: Home, manager: str, streaming: dict[str, str]
) -> None:
    api = api_of(home)
    api.set_paused("stream__nest_cameras", True)
    launch, application = launches(home, "nest_cameras")[-1]
    for each in api.runs("stream__nest_cameras"):
        if each["state"] == "running":
            api.fail_run("stream__nest_cameras", each["dag_run_id"])
    ended = wait_for("the application's end", lambda: end_of(manager, application), PATIENCE)
    assert (ended.state, ended.own_exit_code) == ("FINISHED", 0)
    assert home.ledger(f"SELECT exit_code FROM stream_launches WHERE id = '{launch}'") == [(0,)]
    assert "nest_cameras" not in leases(home)
    check(home, "nest_cameras", committed(home, "nest_cameras"))
