"""Alerts of Airflow's tasks: sent once when a task failed for good, and once when it has succeeded since.

Or when that is no longer needed: another run, or a command, has registered the interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from airflow.sdk import Context
from airflow.sdk.bases.notifier import BaseNotifier

from include import alerts
from include.airflow.tasks import interval_of_run
from include.alerts import overdue
from include.alerts.channels import ALERTS
from include.erasure.keys import FORGOTTEN
from include.errors import TidemarkError
from include.ledger.alerts import FAILED_AT, Alert, open_alerts
from include.ledger.alerts.noted import add_facts
from include.ledger.database import clock
from include.ledger.intervals.days import pinned_within
from include.ledger.intervals.pinned import is_registered_since
from include.pipelines import load_pipeline
from include.times import Interval, format_time, parse_time, time_or_none

__all__ = ["ALERTS", "AlertNotifier", "RecoveryNotifier", "send_alert", "stream_key"]

_log = logging.getLogger(__name__)

TASKS = "task/"
"""Prefix of the keys of tasks' alerts."""

HOUSEKEEPING = "housekeeping/"
"""Prefix of the keys of alerts about housekeeping, which are of no single run: the next night does what is left."""

REGISTERING = "pin_ranges", "build_interval", "reconcile", "publish"
"""Tasks of an interval that have achieved something only when it is registered."""

SUCCESS = "success"
"""Airflow's name of the state."""


def stream_key(pipeline: str) -> str:
    """Return the key of a stream's alerts: one is sent per row of failures."""
    return overdue.stream_keys(pipeline)[0]


def ended_key(pipeline: str) -> str:
    """Return the key of the alert about a stream's run that ended, when no other follows by itself."""
    return overdue.stream_keys(pipeline)[1]


def housekeeping_key(pipeline: str) -> str:
    """Return the key of the alert about a pipeline's housekeeping."""
    return f"{HOUSEKEEPING}{pipeline}"


def _task_key(context: Context) -> str:
    instance = context["ti"]
    mapped = f"/{index}" if (index := getattr(instance, "map_index", -1)) is not None and index >= 0 else ""
    return f"{TASKS}{instance.dag_id}/{instance.run_id}/{instance.task_id}{mapped}"


class AlertNotifier(BaseNotifier):
    """Sends an alert when a task failed for good; `key` replaces the task's own, for what ends the alert."""

    def __init__(self, pipeline: str, key: str = "") -> None:
        super().__init__()
        self.pipeline = pipeline
        self.key = key

    def notify(self, context: Context) -> None:
        """Send the alert of a failed task."""
        lines = str(context.get("exception") or "no error was passed on").strip().splitlines()
        send_alert(context, self.pipeline, lines[-1] if lines else "", key=self.key)


class RecoveryNotifier(BaseNotifier):
    """Closes the alert of a task that failed for good and has succeeded since: it was cleared, or its run done again.

    `key` replaces the task's own, for an alert that any later run ends; a dry run does not.
    Airflow calls it once. If the ledger is down then, `recover_succeeded` closes the alert later.
    """

    def __init__(self, key: str = "") -> None:
        super().__init__()
        self.key = key

    def notify(self, context: Context) -> None:
        """Send the end of the task's alert, if there is one."""
        if self.key and context["params"].get("dry_run"):
            return
        try:
            alerts.recover(self.key or _task_key(context))
        except TidemarkError as error:
            _log.error("whether an alert is over could not be noted: %s", error)


def recover_succeeded(states: Callable[[str, str], Mapping[str, str]]) -> int:
    """Close the open alerts of tasks that have succeeded, or need not any more; return how many there are.

    A task that leads to its interval's registration need not when another run, or a command, has registered that since.

    `states`: states of a run's tasks, by DAG and run; those of mapped tasks are named `<task>_<map index>`.
    Raises ServiceUnreachable.
    """
    recovered = 0
    for told in (*open_alerts(TASKS), *open_alerts(HOUSEKEEPING)):
        dag, run, task = (str(told.facts.get(name, "")) for name in ("dag", "run", "task"))
        _, _, index = told.key.partition(f"{TASKS}{dag}/{run}/{task}/")
        if _is_registered_since(told, task) or (
            states(dag, run).get(f"{task}_{index}" if index else task) == SUCCESS and _has_ended(told, task)
        ):
            recovered += alerts.recover(told.key)
    return recovered


def _has_ended(told: Alert, task: str) -> bool:
    """Whether the interval of a task that leads to its registration is registered, or the task does not lead to one.

    A person may have marked the task as successful, which registers nothing. True for alerts of older code, which noted
    no interval, or erased it.
    """
    if (interval := _to_register(told, task)) is None:
        return True
    return pinned_within(told.pipeline, interval.from_time, interval.to_time)[1].get(interval, False)


def _is_registered_since(told: Alert, task: str) -> bool:
    """Whether a build that was published after the last failure of the task has registered its interval."""
    interval, failed = _to_register(told, task), time_or_none(str(told.facts.get(FAILED_AT, "")))
    return interval is not None and is_registered_since(told.pipeline, interval, failed or told.raised_at or told.since)


def _to_register(told: Alert, task: str) -> Interval | None:
    """Return the interval that a task was to register; None for other tasks, and where the alert does not name it."""
    interval = told.facts.get("interval")
    if interval in (None, FORGOTTEN) or task not in REGISTERING:
        return None
    return Interval(*(parse_time(each) for each in str(interval).split("/")))


def _interval_of(context: Context, pipeline: str) -> dict[str, str]:
    """Return the interval of an interval's run as a fact; none for other runs, and where its form names none."""
    if "dag_run" not in context or not context["ti"].dag_id.startswith("interval__"):
        return {}
    try:
        return {"interval": str(interval_of_run(load_pipeline(pipeline), context))}
    except TidemarkError:
        return {}


def send_alert(context: Context, pipeline: str, error: str, *, key: str = "", query: str = "") -> None:
    """Send an alert about an error of the running task; if the ledger is down, log a line instead.

    `query`: the stalled query of a stream.
    """
    instance = context["ti"]
    # The message, which may quote data, comes before what to do.
    what, separator, todo = error.rpartition(" — ")
    if not separator:
        what, todo = error, ""
    facts = {"dag": instance.dag_id, "run": instance.run_id, "task": instance.task_id, "error": error}
    facts |= _interval_of(context, pipeline)
    alert = Alert(
        key or _task_key(context),
        pipeline,
        what,
        f"{instance.dag_id} {instance.run_id}, task {instance.task_id}",
        datetime.now(UTC),
        todo or f"read the log of the task {instance.task_id}, then clear it",
        {**facts, "query": query} if query else facts,
    )
    try:
        if not alerts.raise_alert(alert) and not key:
            # What was registered before this failure is no end of it.
            add_facts(alert.key, {FAILED_AT: format_time(clock())})
    except TidemarkError as unreachable:
        _log.error("the alert was not sent: %s", unreachable)
