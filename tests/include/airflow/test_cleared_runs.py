"""A manual run that is cleared is for the interval that it was for at first; a real ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from include.airflow.tasks import interval_of_run
from include.pipelines import load_pipeline
from include.times import Interval, every
from tests.conftest import Home
from tests.support.attempts import START, begin_attempt, hour

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"
DAILY = replace(load_pipeline(PIPELINE), schedule=every("1d"))


@dataclass(frozen=True)
class Run:
    """A manual run in the form of a task's context."""

    run_id: str
    run_after: datetime
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    run_type: str = "manual"

    @property
    def context(self) -> dict[str, Any]:
        return {"dag_run": self, "params": {}}


# Airflow infers the interval before the date, and the run is for the one after it.
DATED = Run("dated", START, START, hour(-1).from_time, START)
UNDATED = Run("undated", hour(1).to_time)


@pytest.mark.parametrize(("run", "interval"), [(DATED, hour(0)), (UNDATED, hour(1))])
def test_cleared_run_is_for_the_same_interval_when_the_schedule_changed(
    postgres: Home, run: Run, interval: Interval
) -> None:
    hourly = load_pipeline(PIPELINE)
    assert interval_of_run(hourly, run.context) == interval
    # Runs of two DAGs may have the same id.
    begin_attempt("isp_hits", hour(7), run_by=f"airflow {run.run_id}")
    assert interval_of_run(hourly, run.context) == interval
    begin_attempt(PIPELINE, interval, run_by=f"airflow {run.run_id}")
    assert interval_of_run(DAILY, run.context) == interval


def test_run_is_for_its_own_interval_when_a_deleted_run_of_another_day_had_its_id(postgres: Home) -> None:
    hourly = load_pipeline("gps_positions")
    begin_attempt("gps_positions", hour(0), run_by="airflow again")
    assert interval_of_run(hourly, Run("again", hour(72).to_time).context) == hour(72)
