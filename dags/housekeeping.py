"""One daily DAG: removes files that the registered tables have replaced, and compacts closed days, per pipeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, get_current_context, task

from include.airflow.dag_files import rows_of
from include.airflow.notifier import ALERTS, AlertNotifier, RecoveryNotifier, housekeeping_key
from include.airflow.tasks import take_step
from include.housekeeping.run import keep_house
from include.pipelines import declarations, load_pipeline
from include.pipelines.spec import Pipeline

PATIENCE = timedelta(minutes=10)
"""How long the attempts under way are waited for."""

DOC = """
### Housekeeping

**What**: one task per pipeline. Landing files whose offsets lie wholly in registered intervals are not read any more after the
pipeline's declared time (their rows are then read from the registered revisions). Files of empty and quarantined records stay as
evidence, merged into one per fate and day. What is replaced so is kept for some days, for copies of PostgreSQL name it, and then
deleted, as are old revisions and files that killed jobs left behind. No Spark is started.

**When**: daily at 03:39 UTC, when no interval begins, except of a schedule of 1 or 3 minutes. For those that are being built it waits
up to ten minutes, since an attempt may be reading the files to remove. A run that was missed costs only disk space.

**Reads** ledger, catalog and the lake's `landing/`, `quarantine/`, `tables/`. **Writes** the ledger and `replaced/`, and deletes files there.

| declared times | |
|---|---|
{times}

**A failure** of one pipeline's task stops no other task. A run that was killed is finished by the next one. After the last retry,
an alert goes to the topic `{alerts}`, by e-mail and to a webhook where those are set; it is over when a later run has kept house.

- *another housekeeping is under way*: somebody runs `./tidemark housekeeping`; it is retried.
- *service unreachable* (PostgreSQL): `./tidemark status`; it is retried.
- Lines `left: …` in the log name what was due but not touched, and why: include/docs/runbook.md, “Lines of housekeeping”, says what to do
  about each.

The parameter `dry_run` only counts. On the command line: `./tidemark housekeeping --dry-run`.
"""


def housekeeping_dag() -> DAG:
    """Return the DAG `housekeeping`."""

    def times(pipeline: Pipeline) -> str:
        kept = pipeline.retention
        return (
            f"| {pipeline.name} | landing {kept.landing}, revisions {kept.revisions}, replaced files {kept.replaced} |"
        )

    with DAG(
        "housekeeping",
        description="Housekeeping: removes what tables have replaced, compacts closed days",
        schedule=CronTriggerTimetable("39 3 * * *", timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        tags=["tidemark", "housekeeping"],
        default_args={
            "retries": 2,
            "retry_delay": timedelta(minutes=5),
            "execution_timeout": timedelta(hours=2),
        },
        params={"dry_run": Param(False, type="boolean", description="only report what would be done")},
        doc_md=DOC.format(alerts=ALERTS, times=rows_of(times, declarations().pipelines)),
    ) as dag:

        @task
        def keep(name: str) -> dict[str, Any]:
            """Keep house for one pipeline; return what was done."""
            dry_run = bool(get_current_context()["params"]["dry_run"])
            return take_step(keep_house, load_pipeline(name), dry_run=dry_run, patience=PATIENCE)

        for pipeline in declarations().pipelines:
            key = housekeeping_key(pipeline.name)
            told = {
                "on_failure_callback": AlertNotifier(pipeline.name, key),
                "on_success_callback": RecoveryNotifier(key),
            }
            keep.override(task_id=pipeline.name, **told)(pipeline.name)
    return dag


housekeeping = housekeeping_dag()
