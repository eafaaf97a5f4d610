"""One scheduled DAG per pipeline: pin offset ranges, build, reconcile, publish, announce."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, PokeReturnValue, TaskGroup, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from include.airflow.assets import UNKEYED, emit, interval_asset, partitions_of, table_asset
from include.airflow.dag_files import make_dags
from include.airflow.interval_run.approval import PublishOperator
from include.airflow.interval_run.build import TASK, BuildOperator
from include.airflow.interval_run.form import interval_form
from include.airflow.interval_run.links import DATA_WAY, linked
from include.airflow.interval_run.order import most_runs, weight_rule
from include.airflow.notifier import ALERTS, AlertNotifier, RecoveryNotifier
from include.airflow.tasks import (
    announce_registered,
    announced_now,
    attempt_of,
    judge_reconciliation,
    pin_unless_behind,
    result_of,
    runs_of_missing,
    take_step,
)
from include.pipelines import declarations
from include.pipelines.spec import Pipeline
from include.spark.submission import SPARK_POOL
from include.times import describe_duration

DOC = """
### Intervals of {name}

![The stream lands a topic; an interval pins ranges, builds, reconciles, validates and registers; the ledger records every step]({picture})

**What**: {description}. Recomputes one interval from explicit Kafka offset ranges, proves that archive, Kafka and speed views
agree, lets Great Expectations judge, and only then registers the table partitions {tables}.

**When**: `{cron}` UTC, for the interval that has just ended. Backfills may run in any order; an interval's ranges are pinned once.
A manual run takes the interval of its form, else the one that begins at its logical date if that is a boundary, else the last
complete one; cleared, it keeps the interval that it had, also when the schedule has changed. Up to {most} intervals are under
way at a time, those included that wait for their archive or for a person's answer. While there are that many, no further one begins,
and what passes meanwhile gets no run by itself. Intervals that were never built (Airflow was down)
are built by runs `missing__…` that a run triggers: as many as its parameter `build_missing` says, the oldest first.
{build_missing} After a change to a longer schedule, its first run also triggers one for the time between the last interval of the
earlier schedule and its own.

**Reads** {topics} and the landing files. **Writes** revisions below the lake's `tables/`, the catalog, a report page.

| task | a failure means | what to do |
|---|---|---|
| pin_ranges | the archive has not reached the interval's end (stream stopped or behind; until then the task is `up_for_reschedule`), or offsets are lost | look at `stream__{name}`; it is retried |
| build_interval | Kafka, PostgreSQL or Spark failed while its driver built, compared, validated or registered | the log's last line names it; it is retried, and finishes what was begun |
| reconcile | something is unexplained: a row in Kafka is not in the archive, or a speed view differs | the error names the first coordinates; read the report. Nothing was registered |
| publish | an expectation failed; the catalog is as it was | read the report; correct the data or the suite, then clear the task `pin_ranges` |
| publish, *deferred* | only warnings failed: it waits for a person, without a task slot; nothing is registered yet | look at its *Required actions*: approve to register, or refuse to fail the run; give a reason. `./tidemark approve` does the same |
| announce | the report could not be written, or a notification could not be sent | it is retried |
| find_missing, build_missing | the intervals that were never built could not be read, or their runs could not be triggered; *skipped* is not a failure: there are none, or none are requested | it is retried |
| announce_tables | Airflow did not accept a table's event; *skipped* is not a failure: the interval has, and had, no row in that table | it is retried |

**Announces** each table in which it has, or had, partitions by the asset `lake.<table>`, and the complete interval by
`intervals.{name}`: each time by an event without a key, for DAGs scheduled on the asset, and by one whose partition key is the
interval's start (`2026-11-20T05:00:00`), for partition-aware DAGs.

**Deadline**: an interval is registered {deadline} minutes after its end, else the DAG `watch` alerts the operators, once. A task that
fails for good leaves an alert in the Kafka topic `{alerts}`, and another one when it has succeeded since then,
or another run or a command has registered its interval.

**Form**: from and to, the source (Kafka, or the archive), pinning again, and a dry run, which only reports in the log of `pin_ranges`
what would be read and replaced; then all tasks are *skipped*. A backfill takes the same parameters;
without any (`--dag-run-conf '{{}}'` are none), each run that was made before keeps its own.

Spark drivers of all intervals share the pool `{pool}`; one of these takes {slots} of its slots, and is ended after {longest}. The
latest intervals and manual runs go first, then runs that were cleared, then those of backfills and of missing intervals. An
interval that takes longer is built by command, which waits as long as it takes: `./tidemark interval {name} --from … --to …`.

Running an interval again with unchanged code changes nothing: same ranges, same content hash, same revision.
"""


def interval_dag(pipeline: Pipeline) -> DAG:
    """Return the DAG `interval__<pipeline>`."""
    with DAG(
        f"interval__{pipeline.name}",
        description=f"Intervals: {pipeline.description}",
        schedule=CronDataIntervalTimetable(pipeline.schedule.cron, timezone="UTC"),
        # Before any record: Airflow makes no task of a run by hand whose logical date is earlier.
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=most_runs(pipeline.schedule),
        is_paused_upon_creation=True,
        auto_register=False,
        tags=["tidemark", "interval", pipeline.name],
        default_args=_task_defaults(pipeline),
        params=interval_form(),
        doc_md=_doc(pipeline),
    ) as dag:
        attempt = _pin(pipeline)
        of_spark = {"pipeline": pipeline.name, "attempt": attempt, "execution_timeout": _longest(pipeline)}
        build = BuildOperator(task_id=TASK, **of_spark)
        publish = PublishOperator(task_id="publish", **of_spark)
        announced = _announce(pipeline, attempt)
        attempt >> build >> _reconcile(pipeline, attempt) >> publish >> announced
        _build_missing(pipeline, attempt)
        with TaskGroup("announce_tables"):
            for table in pipeline.tables:
                _announce_table(pipeline, table, announced)
    return dag


def _task_defaults(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "weight_rule": weight_rule(),
        # A quarter of an hour in which a service may be away, longer waits after each try; what cannot pass by itself fails
        # at once.
        "retries": 6,
        "retry_delay": timedelta(seconds=15),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=5),
        "execution_timeout": timedelta(hours=1),
        "on_failure_callback": AlertNotifier(pipeline.name),
        "on_success_callback": RecoveryNotifier(),
    }


def _longest(pipeline: Pipeline) -> timedelta:
    """Return how long a driver may take: as long as its interval, for one that takes longer never keeps up."""
    return max(timedelta(hours=1), pipeline.schedule.every)


def _doc(pipeline: Pipeline) -> str:
    return DOC.format(
        name=pipeline.name,
        picture=DATA_WAY,
        description=pipeline.description,
        cron=pipeline.schedule.cron,
        build_missing=f"By default a scheduled run triggers {pipeline.schedule.build_missing}, other runs none.",
        tables=", ".join(f"`lake.{table}`" for table in pipeline.tables),
        topics=str(pipeline.source),
        alerts=ALERTS,
        deadline=pipeline.schedule.registered_within // timedelta(minutes=1),
        longest=describe_duration(_longest(pipeline)),
        most=most_runs(pipeline.schedule),
        pool=SPARK_POOL,
        slots=pipeline.spark_slots,
    )


def _pin(pipeline: Pipeline) -> Any:
    """Add the task that resolves the interval to offset ranges; it returns the id of the attempt."""

    # It releases its task slot while it waits: the stream that it waits for may need the slot to be launched.
    @task.sensor(mode="reschedule", poke_interval=10, timeout=86_400)
    def pin_ranges() -> PokeReturnValue:
        """Resolve the interval to offset ranges, once; wait for the archive, and for a service that is away."""
        attempt = take_step(pin_unless_behind, pipeline, get_current_context())
        return PokeReturnValue(attempt is not None, attempt)

    return linked(pin_ranges())


def _reconcile(pipeline: Pipeline, attempt: Any) -> Any:
    """Add the task that fails the run when something is unexplained."""

    @task(retries=0)
    def reconcile(attempt: str) -> None:
        """Fail when anything is unexplained."""
        take_step(judge_reconciliation, take_step(attempt_of, pipeline.name, attempt))

    return linked(reconcile(attempt))


def _announce(pipeline: Pipeline, attempt: Any) -> Any:
    """Add the task that announces the complete interval; it returns what the tables' tasks announce."""
    complete = interval_asset(pipeline.name)

    @task(outlets=[complete, UNKEYED])
    def announce(attempt: str, *, outlet_events: Any = None) -> dict[str, Any]:
        """Write the report, end the attempt, announce the complete interval."""
        announced = take_step(announce_registered, take_step(attempt_of, pipeline.name, attempt))
        emit(outlet_events, complete, announced)
        return dict(announced)

    return linked(announce(attempt))


def _build_missing(pipeline: Pipeline, attempt: Any) -> None:
    """Add the tasks that trigger runs of this DAG for intervals that were never built."""

    @task
    def find_missing() -> list[dict[str, Any]]:
        """Choose the intervals, oldest first."""
        return take_step(runs_of_missing, pipeline, get_current_context())

    # After pin_ranges, which also pins earlier intervals.
    attempt >> (missing := find_missing())
    TriggerDagRunOperator.partial(
        task_id="build_missing",
        trigger_dag_id=f"interval__{pipeline.name}",
        logical_date=None,
        skip_when_already_exists=True,
    ).expand_kwargs(missing)


def _announce_table(pipeline: Pipeline, table: str, announced: Any) -> None:
    """Add the task that announces a table's partitions; it is skipped when the interval has, and had, none."""
    asset = table_asset(table)

    # A successful task emits an event for each of its outlets, so each table has a task of its own that can be skipped.
    @task(task_id=table, outlets=[asset, UNKEYED])
    def announce_table(announced: dict[str, Any], *, outlet_events: Any = None) -> None:
        """Announce the table's partitions."""
        of_run = take_step(result_of, "announce", announced, pipeline.name)
        of_table = partitions_of(take_step(announced_now, pipeline, of_run), table)
        if not (of_table["registered"] or of_table["dropped"]):
            raise AirflowSkipException("the interval registered nothing in this table")
        emit(outlet_events, asset, of_table)

    announce_table(announced)


made = make_dags(interval_dag, declarations().pipelines)
globals().update(made.dags)
