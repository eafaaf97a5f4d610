"""One DAG that checks every five minutes for what nobody else reports, and for recoveries.

That is overdue intervals, totals with too many keys, unfinished erasures and refused declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, task

from include import alerts
from include.airflow.dag_files import rows_of
from include.airflow.notifier import ALERTS, recover_succeeded
from include.airflow.tasks import states_of_run, take_step
from include.alerts import erasures, overdue, refused
from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.pipelines import declarations, load_pipeline
from include.pipelines.spec import Pipeline

_log = logging.getLogger(__name__)

DOC = """
### Watch

**What**: checks whether each pipeline's intervals are registered by their deadline, alerts the operators once when some are not, and
once when all are again. It also reports that a stream works again, that a failed task has since succeeded without a notice of it,
or that its interval was registered by another run or a command, and sends alerts that a receiver missed while it was unreachable. No Spark is started.

**When**: every five minutes. A pipeline whose stream has committed nothing yet is left alone, and so are intervals older than
{looked_back:.0f} hours: `./tidemark doctor` names those.

**Reads** the ledger. **Writes** alerts: the ledger's table `alerts`, the Kafka topic `{alerts}`, and e-mail and webhook where
`TIDEMARK_ALERT_SMTP` with `TIDEMARK_ALERT_EMAIL_TO`, or `TIDEMARK_ALERT_WEBHOOK`, are set; mails are sent by Airflow's SMTP provider. Each says what, where, since when, and what to do.

| pipeline | an interval is registered by its end and |
|---|---|
{deadlines}

A view without a window that has more keys than its `max_keys` is reported, too: they are kept for ever. So are an erasure that has not
ended after {erasing:.0f} hours, since files still hold what it is to erase, and a pipeline whose declaration is refused, since it has no DAGs.

A stream counts as recovered when its driver has held the lease for {steady:.0f} minutes; a stalled one, when the stalled query, if it is still
declared, has also committed since.

**A failure** means that the ledger or Kafka cannot be reached, or that a pipeline, which the error names, could not be checked: all
others were. The next run checks again. An alert that one receiver refused is in
the log, and the next run sends it again. A receiver that does not answer is waited for once per run, however many alerts are open.
"""


def watch_dag() -> DAG:
    """Return the DAG `watch`."""

    def deadline(pipeline: Pipeline) -> str:
        return f"| {pipeline.name} | {pipeline.schedule.registered_within // timedelta(minutes=1)} minutes |"

    with DAG(
        "watch",
        description="Watch: reports overdue intervals, once, and when they are registered",
        schedule=CronTriggerTimetable("*/5 * * * *", timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        tags=["tidemark", "alerts"],
        default_args={"execution_timeout": timedelta(minutes=4)},
        doc_md=DOC.format(
            alerts=ALERTS,
            erasing=erasures.UNDER_WAY / timedelta(hours=1),
            deadlines=rows_of(deadline, declarations().loaded),
            looked_back=overdue.LOOKED_BACK / timedelta(hours=1),
            steady=overdue.STEADY / timedelta(minutes=1),
        ),
    ) as dag:

        @task
        def look() -> dict[str, Any]:
            """Check tasks, pipelines and declarations; return counts."""
            return take_step(watch_everything, states_of_run)

        look()
    return dag


def watch_everything(states: Callable[[str, str], Mapping[str, str]]) -> dict[str, Any]:
    """Check tasks, pipelines and declarations, then send what is unsent, once; return counts.

    Those of pipelines are `pipelines`, by name; of tasks and declarations there are the recovered ones.

    `states`: states of a run's tasks, by DAG and run. Raises ServiceUnreachable when the ledger cannot be reached, and
    TidemarkError, after all others were checked, when a pipeline could not be.
    """
    with alerts.sent_together():
        succeeded = recover_succeeded(states)
        looked, failed = _watch_each()
        corrected = refused.watch(declarations(), datetime.now(UTC))
    if failed:
        raise TidemarkError(
            f"these pipelines could not be checked: {'; '.join(failed)}", remedy="all others were; see this task's log"
        )
    return {"pipelines": looked, "tasks": {"recovered": succeeded}, "declarations": {"recovered": corrected}}


def _watch_each() -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the counts by pipeline, and what each of those failed with that could not be checked."""
    looked, failed = dict[str, dict[str, int]](), list[str]()
    # Those that are refused beside another one have no runs, and so get overdue.
    for name in (each.name for each in declarations().loaded):
        try:
            looked[name] = overdue.watch(load_pipeline(name))
        except ServiceUnreachable:
            # They share the ledger: each of them would wait for it again.
            raise
        # Whatever else is raised while a pipeline is checked concerns this pipeline alone.
        except Exception as error:
            _log.exception("%s could not be checked", name)
            failed.append(f"{name}: {type(error).__name__}: {one_line(str(error))}")
    return looked, failed


watch = watch_dag()
