"""A node of YARN is lost under the drivers that Airflow handed over: stream and interval go on at the other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from include.spark import yarn
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import trigger_hour, unpause_without_schedule, wait_for_success
from tests.support.on_yarn import (
    PATIENCE,
    airflow_up,
    bring_back,
    check,
    committed,
    drivers_of,
    end_of,
    launches,
    lose_node,
    node_of,
    node_of_driver,
    produce,
    up,
)

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.own_drivers, pytest.mark.faults, pytest.mark.slow]

START = last_hours(3)
EVENTS = 1000
STREAM, INTERVAL = "stream__nest_cameras", "interval__nest_cameras"


@pytest.fixture(scope="module")
def manager(home: Home) -> str:
    """Address of the resource manager."""
    return up(home)


@pytest.fixture(scope="module")
def airflow(home: Home, manager: str) -> Iterator[AirflowApi]:
    with airflow_up(home, manager, "nest_cameras") as api:
        yield api


@pytest.fixture(scope="module")
def streaming(home: Home, airflow: AirflowApi) -> str:
    """The application of a stream that has archived what there is."""
    produce(home, "nest_cameras", EVENTS, seed=1, start=START)
    airflow.set_paused(STREAM, False)
    wait_for("the stream on YARN", lambda: committed(home, "nest_cameras") == EVENTS, PATIENCE)
    return launches(home, "nest_cameras")[-1][1]


def test_stream_goes_on_at_the_other_node_when_its_own_is_lost(
    home: Home, airflow: AirflowApi, manager: str, streaming: str
) -> None:
    before, lost = launches(home, "nest_cameras"), node_of_driver(home, streaming)
    lose_node(home, lost)
    produce(home, "nest_cameras", 300, seed=2, start=START)
    wait_for("commits of the next driver", lambda: committed(home, "nest_cameras") == EVENTS + 300, PATIENCE)
    later = launches(home, "nest_cameras")
    assert later[: len(before)] == before
    assert len(later) > len(before)
    assert node_of_driver(home, later[-1][1]) != lost
    assert not airflow.is_paused(STREAM)
    check(home, "nest_cameras", EVENTS + 300)
    ended = wait_for("the end of the first one", lambda: end_of(manager, streaming), PATIENCE)
    assert ended.own_exit_code is None


def test_run_says_that_the_log_cannot_be_read_when_its_node_was_lost(
    home: Home, airflow: AirflowApi, streaming: str
) -> None:
    assert len(launches(home, "nest_cameras")) > 1
    run = airflow.runs(STREAM)[-1]["dag_run_id"]
    log = airflow.log(STREAM, run, "stream")
    assert streaming in log
    assert re.search(r"driver: the log cannot be read: its node \S+ does not answer", log)
    # The task's own failure, which Airflow keeps beside the lines of its log.
    (file,) = (home.path / "logs" / "airflow").rglob(f"run_id={run}/task_id=stream/attempt=1.log")
    told = r"the driver of nest_cameras died.*its log: \S+; it cannot be read: its node \S+ does not answer"
    assert re.search(told, file.read_text())


def test_interval_is_tried_again_and_registered_once_when_its_driver_s_node_is_lost(
    home: Home, airflow: AirflowApi, streaming: str
) -> None:
    missing = {"yarn-node-1", "yarn-node-2"} - {node_of_driver(home, launches(home, "nest_cameras")[-1][1])}
    for name in missing:
        bring_back(home, name)
    unpause_without_schedule(airflow, INTERVAL)
    run = trigger_hour(airflow, INTERVAL, START)
    built_by = wait_for("the driver of the interval", lambda: drivers_of(home, "build_interval.py"), PATIENCE)[0]
    application = yarn.own_application(built_by.environ())
    lose_node(home, node_of(home, built_by))
    wait_for_success(airflow, INTERVAL, run, PATIENCE)
    first = airflow.log(INTERVAL, run, "build_interval", 1)
    assert application in first
    assert "the driver's log cannot be read: its node" in first
    assert re.search(rf"{application}: (failed|killed), .*: its node was lost", first)
    assert application not in airflow.log(INTERVAL, run, "build_interval", 2)
    registered = home.ledger(
        "SELECT table_partition, location FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'",
    )
    assert max(Counter(partition for partition, _ in registered).values()) == 1
    ranges = home.json("ranges", "nest_cameras", "--from", iso(START), "--json")
    records = audit.in_ranges(audit.read_topic(home.kafka, "nest-logs"), ranges)
    table = audit.read_parquet(location for _, location in registered)
    assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
    # The stream may have had its driver on the same node.
    total = committed(home, "nest_cameras")
    produce(home, "nest_cameras", 100, seed=3, start=START)
    wait_for("the stream", lambda: committed(home, "nest_cameras") == total + 100, PATIENCE)
    check(home, "nest_cameras", total + 100)
