"""Alerts of Airflow's tasks: told once when a task failed for good, and once when it has succeeded since."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from airflow.sdk import Context
from airflow.sdk.bases.notifier import BaseNotifier

from include import alerts
from include.alerts.channels import ALERTS
from include.errors import TidemarkError
from include.ledger.alerts import Alert

__all__ = ["ALERTS", "AlertNotifier", "RecoveryNotifier", "send_alert", "stream_key"]

_log = logging.getLogger(__name__)


def stream_key(pipeline: str) -> str:
    """Return the key of a stream's alerts: of a row of failures, one is told."""
    return f"stream/{pipeline}"


def _task_key(context: Context) -> str:
    instance = context["ti"]
    return f"task/{instance.dag_id}/{instance.run_id}/{instance.task_id}"


class AlertNotifier(BaseNotifier):
    """Sends an alert when a task failed for good."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self.pipeline = pipeline

    def notify(self, context: Context) -> None:
        """Send the alert of a failed task."""
        lines = str(context.get("exception") or "no error was handed on").strip().splitlines()
        send_alert(context, self.pipeline, lines[-1] if lines else "")


class RecoveryNotifier(BaseNotifier):
    """Tells that a task which had failed for good has succeeded: it was cleared, or its run is done again."""

    def notify(self, context: Context) -> None:
        """Send the end of the task's alert, if there is one."""
        try:
            alerts.recover(_task_key(context))
        except TidemarkError as error:
            _log.error("whether an alert is over was not told: %s", error)


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
        alerts.tell(alert)
    except TidemarkError as unreachable:
        _log.error("the alert was not sent: %s", unreachable)
