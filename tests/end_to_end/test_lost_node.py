"""A node of YARN is lost under the driver of a stream that Airflow handed over: it goes on at the other node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from include.airflow.api import AirflowApi
from include.spark import yarn
from tests.conftest import Home, last_hours, wait_for
from tests.support.airflow_ui import api_of
from tests.support.on_yarn import (
    ON_YARN,
    PATIENCE,
    check,
    committed,
    launches,
    lose_node,
    node_of_driver,
    produce,
)

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.own_drivers, pytest.mark.faults, pytest.mark.slow]

START = last_hours(3)
EVENTS = 1000
STREAM = "stream__nest_cameras"


@pytest.fixture(scope="module")
def manager(home: Home) -> str:
    """Address of the resource manager."""
    home.run("up", "yarn")
    return str(home.services["yarn"]["address"])


@pytest.fixture(scope="module")
def airflow(home: Home, manager: str) -> Iterator[AirflowApi]:
    home.run("up", "airflow", **ON_YARN)
    api = api_of(home)
    wait_for("the DAGs", lambda: STREAM in api.dag_ids(), 180)
    yield api
    api.set_paused(STREAM, True)
    for _, application in launches(home, "nest_cameras"):
        if application:
            yarn.kill(manager, application)


@pytest.fixture(scope="module")
def streaming(home: Home, airflow: AirflowApi) -> str:
    """The application of a stream that has archived what there is."""
    produce(home, "nest_cameras", EVENTS, seed=1, start=START)
    airflow.set_paused(STREAM, False)
    wait_for("the stream on YARN", lambda: committed(home, "nest_cameras") == EVENTS, PATIENCE)
    return launches(home, "nest_cameras")[-1][1]


def end_of(manager: str, application: str) -> yarn.Application | None:
    """The application, once it has ended."""
    found = yarn.find(manager, application)
    return found if found is not None and found.has_ended else None


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
