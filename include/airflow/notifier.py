"""Alerts of Airflow's tasks: told once when a task failed for good, and once when it has succeeded since."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from airflow.sdk import Context
from airflow.sdk.bases.notifier import BaseNotifier

from include import alerts
from include.alerts import overdue
from include.alerts.channels import ALERTS
from include.errors import TidemarkError
from include.ledger.alerts import Alert, open_alerts

__all__ = ["ALERTS", "AlertNotifier", "RecoveryNotifier", "send_alert", "stream_key"]

_log = logging.getLogger(__name__)

TASKS = "task/"
"""How the keys of tasks' alerts begin."""

SUCCESS = "success"
"""Airflow's name of the state."""


def stream_key(pipeline: str) -> str:
    """Return the key of a stream's alerts: of a row of failures, one is told."""
    return overdue.stream_keys(pipeline)[0]


def ended_key(pipeline: str) -> str:
    """Return the key of the alert that a stream's run ended, and no other follows by itself."""
    return overdue.stream_keys(pipeline)[1]


def _task_key(context: Context) -> str:
    instance = context["ti"]
    mapped = f"/{index}" if (index := getattr(instance, "map_index", -1)) is not None and index >= 0 else ""
    return f"{TASKS}{instance.dag_id}/{instance.run_id}/{instance.task_id}{mapped}"


class AlertNotifier(BaseNotifier):
    """Sends an alert when a task failed for good; `key`: what ends it is found by this key, not by the task's."""

    def __init__(self, pipeline: str, key: str = "") -> None:
        super().__init__()
        self.pipeline = pipeline
        self.key = key

    def notify(self, context: Context) -> None:
        """Send the alert of a failed task."""
        lines = str(context.get("exception") or "no error was handed on").strip().splitlines()
        send_alert(context, self.pipeline, lines[-1] if lines else "", key=self.key)


class RecoveryNotifier(BaseNotifier):
    """Tells that a task which had failed for good has succeeded: it was cleared, or its run is done again.

    Airflow calls it once. What it could not tell then, because the ledger was away, `recover_succeeded` tells later.
    """

    def notify(self, context: Context) -> None:
        """Send the end of the task's alert, if there is one."""
        try:
            alerts.recover(_task_key(context))
        except TidemarkError as error:
            _log.error("whether an alert is over was not told: %s", error)


def recover_succeeded(states: Callable[[str, str], Mapping[str, str]]) -> int:
    """Tell of tasks that have succeeded though their alert is still open; return how many there are.

    `states`: states of a run's tasks, by DAG and run; those of mapped tasks are named `<task>_<map index>`.
    Raises ServiceUnreachable.
    """
    recovered = 0
    for told in open_alerts(TASKS):
        dag, run, task = (str(told.facts.get(name, "")) for name in ("dag", "run", "task"))
        _, _, index = told.key.removeprefix(f"{TASKS}{dag}/{run}/{task}").partition("/")
        if states(dag, run).get(f"{task}_{index}" if index else task) == SUCCESS:
            recovered += alerts.recover(told.key)
    return recovered


def send_alert(context: Context, pipeline: str, error: str, *, key: str = "", query: str = "") -> None:
    """Tell of an error of the running task; a ledger that is away leaves a line in the task's log.

    `query`: of a stream, that which is stalled.
    """
    instance = context["ti"]
    what, _, todo = error.partition(" — ")
    facts = {"dag": instance.dag_id, "run": instance.run_id, "task": instance.task_id, "error": error}
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
        alerts.raise_alert(alert)
    except TidemarkError as unreachable:
        _log.error("the alert was not sent: %s", unreachable)
