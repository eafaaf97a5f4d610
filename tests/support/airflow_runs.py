"""Runs of Airflow's DAGs, waited for to their end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.conftest import iso, wait_for
from tests.support.airflow_api import AirflowApi

POLL = 1.5
"""Seconds between two looks at a run that takes minutes: a look costs Airflow's API server some 20 ms of CPU time."""


def unpause_without_schedule(api: AirflowApi, dag: str) -> None:
    """Let an interval's DAG run, without the run of the last hour that its schedule begins at once."""
    api.set_paused(dag, False)

    def scheduled() -> list[dict[str, Any]]:
        return [each for each in api.runs(dag) if each["run_type"] == "scheduled"]

    [first, *_] = wait_for("the schedule's own", scheduled, every=POLL)
    api.fail_run(dag, first["dag_run_id"])


def trigger_hour(api: AirflowApi, dag: str, start: datetime) -> str:
    """Run an interval's DAG for the hour from `start`, and return the run's id."""
    return api.trigger(dag, **{"from": iso(start), "to": iso(start + timedelta(hours=1))})


def state_once_ended(api: AirflowApi, dag: str, run: str) -> str | None:
    """The state of a run that has ended."""
    state: str = next(each["state"] for each in api.runs(dag) if each["dag_run_id"] == run)
    return state if state in ("success", "failed") else None


def wait_for_success(api: AirflowApi, dag: str, run: str, seconds: float) -> None:
    """Wait for a run's end, which is to be its success."""
    state = wait_for(f"the run {run} of {dag}", lambda: state_once_ended(api, dag, run), seconds, every=POLL)
    assert state == "success", api.tasks(dag, run)
