"""One scheduled DAG per pipeline: pin offset ranges, build, reconcile, publish, announce."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, PokeReturnValue, get_current_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from include import lake
from include.airflow.notifier import ALERTS, AlertNotifier
from include.airflow.spark import JobOperator
from include.errors import ArchiveBehind, ServiceUnreachable, TidemarkError, UsageError
from include.intervals import steps
from include.pipelines import all_pipelines
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.times import Interval, parse_duration, parse_time

DOC = """
### Intervals of {name}

**What**: {description}. Recomputes one interval from explicit Kafka offset ranges, proves that archive, Kafka and speed views
agree, lets Great Expectations judge, and only then registers the table partitions {tables}.

**When**: `{cron}` UTC, for the interval that has just ended. Backfills may run in any order; an interval's ranges are pinned once.
A manual run takes the last complete interval, or the one of the parameters `from` and `to`.

**Reads** {topics} and the landing files. **Writes** revisions below the lake's `tables/`, the catalog, a report page.

| task | a failure means | what to do |
|---|---|---|
| pin_ranges | the archive has not reached the interval's end (stream stopped or behind; until then the task is `up_for_reschedule`), or offsets are lost | look at `stream__{name}`; it is retried |
| build_interval | Kafka, PostgreSQL or Spark failed; nothing was registered | the log's last line names it; it is retried |
| reconcile | something is unexplained: a row in Kafka is not in the archive, or a speed view differs | the error names the first coordinates; read the report. Nothing was registered |
| publish | an expectation failed; the catalog is as it was | read the report; mend the data or the suite, then clear the task `pin_ranges` |
| announce | the report could not be written, or a notification not be sent | it is retried |

A task that fails for good leaves an alert in the Kafka topic `{alerts}`.

Running an interval again with unchanged code changes nothing: same ranges, same content hash, same revision.
"""


_POKE = timedelta(seconds=10)
"""How long a poke of `pin_ranges` waits for the archive before it gives its task slot back."""


def _run(step: Any, *arguments: Any, **options: Any) -> Any:
    """Run a step; a Tidemark error becomes one line, and no retry where it would end the same way."""
    try:
        return step(*arguments, **options)
    except (ServiceUnreachable, ArchiveBehind) as error:
        raise AirflowException(str(error)) from None
    except TidemarkError as error:
        raise AirflowFailException(str(error)) from None


def _interval(pipeline: Pipeline, context: Any) -> Interval:
    """The interval that the run's parameters name, else its data interval, else the last one complete before it.

    Raises UsageError for half a pair of parameters, or times that are not one past interval of the schedule.
    """
    begin, end = context["params"].get("from"), context["params"].get("to")
    if begin and end:
        return pipeline.schedule.interval(parse_time(begin), parse_time(end), now=datetime.now(UTC))
    if begin or end:
        raise UsageError(
            "only one of the parameters from and to is given",
            remedy="give both, or neither for the last complete interval",
            pipeline=pipeline.name,
        )
    run = context["dag_run"]
    if run.data_interval_start is None:
        # A run triggered without a logical date has none; its run_after stays the same over retries and clearing.
        boundary = pipeline.schedule.floor(run.run_after.astimezone(UTC))
        return Interval(boundary - pipeline.schedule.every, boundary)
    return Interval(run.data_interval_start.astimezone(UTC), run.data_interval_end.astimezone(UTC))


def _pin(pipeline: Pipeline, interval: Interval, context: Any) -> str | None:
    """Pin the interval; the id of its attempt, None while the archive is behind.

    Raises ArchiveBehind when it has been for longer than the setting `archive_wait`.
    """
    run_by = f"airflow {context['dag_run'].run_id}"
    try:
        return str(steps.pin(pipeline.name, interval, run_by=run_by, patience=_POKE))
    except ArchiveBehind as error:
        began = context["ti"].get_first_reschedule_date(context)
        if began is not None and datetime.now(UTC) - began > parse_duration(settings().archive_wait):
            raise
        print(f"waiting: {error}")
        return None


def interval_dag(pipeline: Pipeline) -> DAG:
    """The DAG `interval__<pipeline>`."""
    assets = [Asset(name=f"lake.{table}", uri=lake.uri("tables", table)) for table in pipeline.tables]
    with DAG(
        f"interval__{pipeline.name}",
        description=f"Intervals: {pipeline.description}",
        schedule=CronDataIntervalTimetable(pipeline.schedule.cron, timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        tags=["tidemark", "interval", pipeline.name],
        default_args={
            "retries": 2,
            "retry_delay": timedelta(seconds=15),
            "execution_timeout": timedelta(hours=1),
            "on_failure_callback": AlertNotifier(pipeline.name),
        },
        params={
            "from": Param(None, type=["null", "string"], format="date-time", description="start of another interval"),
            "to": Param(None, type=["null", "string"], format="date-time", description="end of that interval"),
        },
        doc_md=DOC.format(
            name=pipeline.name,
            description=pipeline.description,
            cron=pipeline.schedule.cron,
            tables=", ".join(f"`lake.{table}`" for table in pipeline.tables),
            topics=str(pipeline.source),
            alerts=ALERTS,
        ),
    ) as dag:
        # Its task slot is given back while it waits: the stream that it waits for may need it to be launched.
        @task.sensor(mode="reschedule", poke_interval=10, timeout=86_400)
        def pin_ranges() -> PokeReturnValue:
            """Resolve the interval to offset ranges, once; wait for the archive."""
            context = get_current_context()
            interval = _run(_interval, pipeline, context)
            attempt = _run(_pin, pipeline, interval, context)
            return PokeReturnValue(attempt is not None, attempt)

        @task(retries=0)
        def reconcile(attempt: str) -> None:
            """Stop here when anything is unexplained."""
            _run(steps.judge_reconciliation, int(attempt))

        @task(outlets=assets)
        def announce(attempt: str, *, outlet_events: Any = None) -> dict[str, Any]:
            """Write the report, end the attempt, tell who waits for the tables."""
            verdict = _run(steps.announce, int(attempt))
            for asset in assets:
                partitions = [r for r in verdict.registered if f"lake.{r['table']}" == asset.name]
                outlet_events[asset].extra = {"partitions": partitions, "report": verdict.report}
                outlet_events[asset].add_partitions([r["partition"] for r in partitions])
            return {
                "records": verdict.records,
                "reconciliation": verdict.reconciliation,
                "registered": verdict.registered,
                "report": verdict.report,
            }

        attempt = pin_ranges()
        build = JobOperator(task_id="build_interval", job="build_interval", pipeline=pipeline.name, attempt=attempt)
        publish = JobOperator(task_id="publish", job="publish", pipeline=pipeline.name, attempt=attempt)
        attempt >> build >> reconcile(attempt) >> publish >> announce(attempt)
    return dag


for _pipeline in all_pipelines():
    globals()[f"interval__{_pipeline.name}"] = interval_dag(_pipeline)
