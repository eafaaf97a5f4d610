"""`TableComplete`: wait until everything before a time is registered, without a worker's slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.operator import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.airflow.tasks import take_step
from include.errors import ServiceUnreachable
from include.ledger.completeness import Completeness
from include.ledger.completeness.of_table import completeness_of_table
from include.pipelines import pipeline_of_table
from include.times import format_time, parse_time


class CompleteTrigger(BaseTrigger):
    """Asks the ledger until a table is complete until a time."""

    def __init__(self, pipeline: str, until: str, since: str = "", poll_seconds: float = 15.0, table: str = "") -> None:
        super().__init__()
        self.pipeline = pipeline
        # What was deferred by an earlier version names no table: its pipeline's own then.
        self.table = table or pipeline
        self.until = until
        self.since = since
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments: dict[str, Any] = {
            "pipeline": self.pipeline,
            "until": self.until,
            "since": self.since,
            "poll_seconds": self.poll_seconds,
        }
        # A triggerer that an upgrade has not restarted knows no tables.
        if self.table != self.pipeline:
            arguments["table"] = self.table
        return f"{type(self).__module__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when they are; a ledger that is down is asked again."""
        told = ""
        while True:
            try:
                step = await asyncio.to_thread(look, self.pipeline, self.table, self.since)
                if step.reaches(parse_time(self.until)):
                    yield TriggerEvent(step.as_json())
                    return
                line = str(step)
            except ServiceUnreachable as error:
                line = f"cannot ask the ledger now: {error}"
            if line != told:
                self.log.info("%s", line)
                told = line
            await asyncio.sleep(self.poll_seconds)


def look(pipeline: str, table: str, since: str) -> Completeness:
    """Return until when the table is complete from `since` on; empty: from where its intervals have it."""
    return completeness_of_table(pipeline, table, parse_time(since) if since else None)


class TableComplete(BaseOperator):
    """Succeeds when all records before `until` are in the table; `until` is complete, not only present.

    Waits in the triggerer, for as long as `timeout`. With `since`, what lies before it does not count. The task returns
    until when the table was complete then. Raises UsageError for a table that no pipeline declares.
    """

    template_fields = ("until", "since")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        table: str,
        until: datetime | str = "{{ data_interval_end }}",
        since: datetime | str = "",
        poll_seconds: float = 15.0,
        timeout: timedelta = timedelta(days=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table.removeprefix("lake.")
        self.pipeline = pipeline_of_table(self.table).name
        self.until = until
        self.since = since
        self.poll_seconds = poll_seconds
        self.timeout = timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Succeed at once when the table is complete, else wait for it."""
        until, since = (take_step(_as_text, each) for each in (self.until, self.since))
        step = take_step(look, self.pipeline, self.table, since)
        if not step.reaches(parse_time(until)):
            self.log.info("waiting for %s: %s", until, step)
            trigger = CompleteTrigger(self.pipeline, until, since, self.poll_seconds, self.table)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=self.timeout)
        return self.execute_complete(context, step.as_json())

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return what the table's completeness was."""
        self.log.info("lake.%s is complete until %s", self.table, event["until"])
        return {"table": self.table, **event}


def _as_text(moment: datetime | str) -> str:
    """Return a time as text; a template's result is checked. Raises UsageError for anything but a time in UTC."""
    if isinstance(moment, datetime):
        return format_time(moment)
    return format_time(parse_time(moment)) if moment else ""
