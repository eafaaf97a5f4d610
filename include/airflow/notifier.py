"""Alerts of the operators: one message each in a Kafka topic."""

from __future__ import annotations

import json
import logging

from airflow.sdk import Context
from airflow.sdk.bases.notifier import BaseNotifier

from include import kafka
from include.errors import ServiceUnreachable

ALERTS = "tidemark-alerts"
"""Topic of the alerts; key: pipeline, value: JSON object of pipeline, dag, run, task and error."""


_log = logging.getLogger(__name__)


class AlertNotifier(BaseNotifier):
    """Sends an alert when a task failed for good."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self.pipeline = pipeline

    def notify(self, context: Context) -> None:
        """Send the alert of a failed task."""
        lines = str(context.get("exception") or "no error was handed on").strip().splitlines()
        send_alert(context, self.pipeline, lines[-1] if lines else "")


def send_alert(context: Context, pipeline: str, error: str) -> None:
    """Write an alert of the running task into `ALERTS`; a broker that is away leaves a line in the task's log."""
    instance = context["ti"]
    alert = {
        "pipeline": pipeline,
        "dag": instance.dag_id,
        "run": instance.run_id,
        "task": instance.task_id,
        "error": error,
    }
    try:
        kafka.create_topic(ALERTS, 1)
        kafka.send(ALERTS, [(pipeline.encode(), json.dumps(alert, sort_keys=True).encode())])
    except ServiceUnreachable as unreachable:
        _log.error("the alert was not sent: %s", unreachable)
