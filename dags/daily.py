"""One DAG per hourly pipeline that sums up a day as soon as all of its intervals are registered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    DayWindow,
    Param,
    PartitionedAssetTimetable,
    RollupMapper,
    StartOfDayMapper,
    get_current_context,
    task,
)

from include.airflow.assets import interval_asset
from include.airflow.dag_files import make_dags
from include.airflow.daily import roll_up
from include.airflow.notifier import ALERTS, AlertNotifier
from include.airflow.tasks import day_of_run, take_step
from include.pipelines import declarations
from include.pipelines.spec import Pipeline

DOC = """
### Days of {name}

**What**: sums up one day of *{description}*: records by fate, partitions and rows by table. No Spark is started.

**When**: once all 24 intervals of a day (UTC) are registered, in whatever order `interval__{name}` ran them. An interval that was
registered by the command is unknown to Airflow: then trigger this DAG manually, with the parameter `day`.

**Reads** the ledger. **Writes** `reports/{name}/<day>.json` below the lake; a second run replaces it.

**A failure** means that an interval of the day is no longer registered (repinned, or its last attempt failed); the error names
the first one and the command that builds it. Then clear this run. The last failure leaves an alert in the Kafka topic `{alerts}`.

Airflow counts an interval only while this DAG is unpaused: trigger the day in which you unpause it manually. An interval that runs
again later starts no new run of its day: clear the day's run to sum it up again. What Airflow keeps of such intervals is removed
monthly, as the runbook says (*Days that Airflow waits for in vain*).
"""


def daily_dag(pipeline: Pipeline) -> DAG | None:
    """Return the DAG `daily__<pipeline>`; None for a pipeline that is not hourly."""
    if not pipeline.schedule.is_hourly:
        return None
    with DAG(
        f"daily__{pipeline.name}",
        description=f"Days: {pipeline.description}",
        schedule=PartitionedAssetTimetable(
            assets=interval_asset(pipeline.name),
            default_partition_mapper=RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow()),
        ),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        auto_register=False,
        tags=["tidemark", "daily", pipeline.name],
        default_args={
            "retries": 2,
            "retry_delay": timedelta(minutes=1),
            "execution_timeout": timedelta(minutes=10),
            "on_failure_callback": AlertNotifier(pipeline.name),
        },
        params={"day": Param(None, type=["null", "string"], format="date", description="the day of a manual run")},
        doc_md=DOC.format(name=pipeline.name, description=pipeline.description, alerts=ALERTS),
    ) as dag:

        @task(task_id="roll_up")
        def roll_up_day() -> dict[str, Any]:
            """Sum up the day; return what was written."""
            return take_step(roll_up, pipeline, take_step(day_of_run, get_current_context()))

        roll_up_day()
    return dag


made = make_dags(daily_dag, declarations().pipelines)
globals().update(made.dags)
