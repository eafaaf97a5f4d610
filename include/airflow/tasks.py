"""Steps as tasks take them: the error tree as Airflow's exceptions, and the interval that a run is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from include.airflow.daily import parse_day
from include.airflow.interval_run.form import Wishes
from include.airflow.interval_run.order import MISSING, RESERVE, most_runs
from include.airflow.interval_run.step_log import log_step
from include.errors import (
    ArchiveBehind,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    UsageError,
    error_class,
)
from include.intervals import steps
from include.intervals.boundaries import asked_interval
from include.intervals.missing import missing_in_order, rest_before
from include.intervals.reporting.plan import plan_interval
from include.ledger.completeness import completeness
from include.ledger.intervals import attempts, pins, revisions
from include.ledger.intervals.pinned import has_pinned_again
from include.pipelines.spec import Pipeline
from include.proof.write import prove_registered
from include.settings import settings
from include.times import Interval, format_time, parse_duration, parse_time

Result = TypeVar("Result")

_OF_SCHEDULE = "scheduled", "backfill"
"""Types of runs whose data interval is one of the schedule."""

POKE = timedelta(seconds=10)
"""How long a poke of `pin_ranges` waits for the archive before it gives its task slot back."""


def task_failure(error: type[TidemarkError] | TidemarkError, text: str) -> AirflowException:
    """Return Airflow's exception of an error: one that is retried, or one that is not."""
    return AirflowException(text) if error.retryable else AirflowFailException(text)


def take_step(step: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Take a step. Raises an error of the tree as Airflow's, in one line, with or without a retry."""
    try:
        return step(*arguments, **options)
    except TidemarkError as error:
        raise task_failure(error, str(error)) from None


def interval_of_run(pipeline: Pipeline, context: Any) -> Interval:
    """Return the interval that the run's parameters name, else its own, else the last one complete before it.

    The own one of a run of the schedule or of a backfill is its data interval. That of a manual run begins at its
    logical date, if this is a boundary, as the schedule's run of that date would; it may not have passed yet. A manual
    run that has had an attempt keeps that one's interval.
    Raises UsageError for half a pair of parameters, or times that are not one past interval of the schedule, and
    ServiceUnreachable.
    """
    begin, end = context["params"].get("from"), context["params"].get("to")
    if begin and end:
        return asked_interval(pipeline, parse_time(begin), parse_time(end))
    if begin or end:
        raise UsageError(
            "only one of the parameters from and to is given",
            remedy="give both, or neither for the last complete interval",
            pipeline=pipeline.name,
        )
    run = context["dag_run"]
    at = run.data_interval_end or run.run_after
    if run.run_type not in _OF_SCHEDULE and (known := attempts.interval_of_run(pipeline.name, _run_by(run), at)):
        # The schedule may have changed since: cleared, the run would build another interval.
        return known
    if run.data_interval_start is None:
        # A run triggered without a logical date has none; its run_after stays the same over retries and clearing.
        boundary = pipeline.schedule.floor(run.run_after.astimezone(UTC))
        return Interval(boundary - pipeline.schedule.every, boundary)
    begin, end = run.data_interval_start.astimezone(UTC), run.data_interval_end.astimezone(UTC)
    if end == run.logical_date and pipeline.schedule.floor(end) == end:
        # A run by hand, or a backfill that took one over: Airflow infers the interval before the date. But by its date
        # the run takes the place of the schedule's run, which would build the one after it.
        return Interval(end, end + pipeline.schedule.every)
    if run.run_type in _OF_SCHEDULE:
        # As it was made: the schedule may have changed since.
        return Interval(begin, end)
    return asked_interval(pipeline, begin, end)


def _run_by(run: Any) -> str:
    return f"airflow {run.run_id}"


def result_of(task: str, result: Result | None, pipeline: str) -> Result:
    """Return what a task has returned. Raises UsageError when that is nothing: it was marked as successful by hand."""
    if result is None:
        raise UsageError(
            f"{task} has no result: it was marked as successful by hand",
            remedy=f"clear the task {task} with those after it",
            pipeline=pipeline,
        )
    return result


def attempt_of(pipeline: str, attempt: Any, context: Any = None) -> int:
    """Return the number of the attempt that the run's `pin_ranges` began; `context` is by default this task's.

    Raises UsageError when it began none, or the number is another run's in a ledger that was restored since.
    """
    number = int(result_of("pin_ranges", attempt, pipeline))
    return attempts.attempt_of(pipeline, number, _run_by((context or get_current_context())["ti"])).id


def pin_unless_behind(pipeline: Pipeline, context: Any) -> str | None:
    """Pin the run's interval as its form says and return the id of its attempt.

    A run pins again once: cleared, it builds the same ranges, also after the next interval was pinned.
    None while the archive is behind or a service is away. Raises ArchiveBehind or ServiceUnreachable when it has been
    for longer than the setting `archive_wait`, UsageError of `interval_of_run`, and Airflow's exception that skips this
    task and those after it for a dry run.
    """
    run_by, wishes = _run_by(context["dag_run"]), Wishes.of_run(context["params"])
    try:
        interval = interval_of_run(pipeline, context)
        if wishes.dry_run:
            for line in plan_interval(
                pipeline, interval, source=wishes.source, repin=wishes.repin, new_references=wishes.new_references
            ):
                print(line)
            raise AirflowSkipException("a dry run: nothing was changed")
        repin = wishes.repin and not has_pinned_again(pipeline.name, interval, run_by)
        if repin != wishes.repin:
            print(f"{interval} was pinned again by this run: it keeps these ranges")
        attempt = steps.pin(pipeline.name, interval, run_by=run_by, source=wishes.source, repin=repin, patience=POKE)
    except (ArchiveBehind, ServiceUnreachable) as error:
        began = context["ti"].get_first_reschedule_date(context)
        if began is not None and datetime.now(UTC) - began > parse_duration(settings().archive_wait):
            raise
        print(f"waiting: {error}")
        return None
    log_step("pin_ranges", attempt)
    return str(attempt)


def judge_reconciliation(attempt: int) -> None:
    """Log what the comparison found. Raises ReconciliationFailed when something is unexplained or nothing is built."""
    try:
        steps.judge_reconciliation(attempt)
    except ReconciliationFailed:
        log_step("reconcile", attempt, failed=True)
        raise
    log_step("reconcile", attempt)


def runs_of_missing(pipeline: Pipeline, context: Any) -> list[dict[str, Any]]:
    """Return the runs that build intervals which were never built, oldest first: `trigger_run_id` and `conf` of each.

    As many as the run's parameter `build_missing` says, else as the schedule declares, for a run of the schedule; no
    more than leave room for the schedule's own runs: another run builds the rest. Before them, a run of the schedule
    also builds what a change of the schedule left before its own interval.
    An interval that has had such a run is left out, however it ended: its alert was sent, and doctor, or the page of
    intervals once a build of it was judged, still reports it. So is one for which another run is about to begin.
    """
    run, wanted = context["dag_run"], context["params"].get("build_missing")
    is_scheduled = run.run_type == "scheduled"
    if wanted is None:
        wanted = pipeline.schedule.build_missing if is_scheduled else 0
    count, unended = partial(context["ti"].get_dr_count, run.dag_id), ["queued", "running"]

    def has_run(interval: Interval) -> bool:
        return bool(
            count(run_ids=[_run_of_missing(interval)]) or count(logical_dates=[interval.from_time], states=unended)
        )

    rest = rest_before(pipeline, interval_of_run(pipeline, context)) if is_scheduled else None
    missing = (each for each in (missing_in_order(pipeline) if wanted else ()) if each != rest and not has_run(each))
    first = [rest] if rest is not None and not has_run(rest) else []
    under_way = count(states=unended) if wanted or first else 0
    most = most_runs(pipeline.schedule)
    room = most - RESERVE - under_way
    runs: list[dict[str, Any]] = []
    for interval in chain(first, islice(missing, wanted)):
        if len(runs) >= room:
            print(
                f"{len(runs)} of {len(first) + wanted} runs: the pipeline has {most} at a time, keeps {RESERVE} of "
                f"them for the schedule, and {under_way} are queued or run, those of backfills included — build the "
                "rest by a later run with build_missing"
            )
            break
        begin, end = format_time(interval.from_time), format_time(interval.to_time)
        runs.append({"trigger_run_id": _run_of_missing(interval), "conf": {"from": begin, "to": end}})
    return runs


def _run_of_missing(interval: Interval) -> str:
    return f"{MISSING}{format_time(interval.from_time)}"


def announce_registered(attempt: int) -> dict[str, Any]:
    """Write the report, end the attempt, and return what its interval's events state.

    Raises the error of a verdict that did not pass.
    """
    verdict = steps.announce(attempt)
    log_step("announce", attempt, verdict, failed=bool(verdict.exit_code))
    if verdict.exit_code:
        failed = error_class(verdict.exit_code)
        raise failed(
            f"{failed.meaning}: there is nothing to announce",
            remedy=f"read the report: {verdict.report}",
            pipeline=verdict.pipeline,
        )
    return {
        "interval": verdict.interval,
        "records": verdict.records,
        "reconciliation": verdict.reconciliation,
        "registered": verdict.registered,
        "report": verdict.report,
        **_also_told(verdict.pipeline, attempts.load_attempt(attempt).pinned.id),
    }


def announced_now(pipeline: Pipeline, announced: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run announces with what its interval has registered by now.

    Another run of the interval may have replaced it while this one's event was waiting for its retry, and consumers
    take the newest event for what is registered.
    """
    pinned = pins.find_interval(pipeline.name, parse_time(announced["interval"]["from"]))
    if pinned is None:
        return dict(announced)
    proof = prove_registered(pipeline, pinned.id)
    registered = [{**each.as_registered(), "proof": proof} for each in revisions.registered_of_interval(pinned.id)]
    return {**announced, "registered": registered, **_also_told(pipeline.name, pinned.id)}


def _also_told(pipeline: str, interval_id: int) -> dict[str, Any]:
    gone = revisions.no_longer_registered(interval_id)
    return {
        "dropped": [{"table": table, "partition": partition} for table, partition in gone],
        "complete_until": completeness(pipeline).as_json()["until"],
    }


def states_of_run(dag: str, run: str) -> Mapping[str, str]:
    """Return the states of a run's tasks by their ids, as Airflow has them; none for a run that was deleted."""
    states: Mapping[str, Mapping[str, str]] = get_current_context()["ti"].get_task_states(dag_id=dag, run_ids=[run])
    return states.get(run, {})


def day_of_run(context: Any) -> datetime:
    """Return the start of the day that the run is for: its partition key, else its parameter `day`.

    Raises UsageError when it has neither.
    """
    day = context["dag_run"].partition_key or context["params"].get("day")
    if not day:
        raise UsageError("neither a partition key nor the parameter day is given", remedy="give the day: 2026-11-20")
    return parse_day(day)
