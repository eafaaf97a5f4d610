"""Tells the operators that a task failed for good: one message in a Kafka topic."""

from __future__ import annotations

import json

from airflow.sdk import Context
from airflow.sdk.bases.notifier import BaseNotifier

from include import kafka
from include.errors import ServiceUnreachable

ALERTS = "tidemark-alerts"
"""Topic of the alerts; key: pipeline, value: JSON object of pipeline, dag, run, task and error."""


class AlertNotifier(BaseNotifier):
    """Writes an alert into `ALERTS`; a broker that is away too leaves a line in the task's log."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self.pipeline = pipeline

    def notify(self, context: Context) -> None:
        """Send the alert of a failed task."""
        instance = context["ti"]
        lines = str(context.get("exception") or "no error was handed on").strip().splitlines()
        alert = {
            "pipeline": self.pipeline,
            "dag": instance.dag_id,
            "run": instance.run_id,
            "task": instance.task_id,
            "error": lines[-1] if lines else "",
        }
        try:
            kafka.create_topic(ALERTS, 1)
            kafka.send(ALERTS, [(self.pipeline.encode(), json.dumps(alert, sort_keys=True).encode())])
        except ServiceUnreachable as error:
            self.log.error("the alert was not sent: %s", error)
