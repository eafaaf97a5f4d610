"""Watches a question that a person may also answer outside of Airflow, so that its run does not wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.errors import ServiceUnreachable
from include.intervals import approving

ANSWERED_ELSEWHERE = "answered elsewhere"
"""Key of the event's payload, which an answer in Airflow does not have."""


class DecisionTrigger(BaseTrigger):
    """Fires when a question was decided by `./tidemark approve`, or is asked no longer.

    An answer in Airflow needs no trigger: its API server resumes the task.
    """

    def __init__(self, question: int, poll_seconds: float = 10.0) -> None:
        super().__init__()
        self.question = question
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {"question": self.question, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the question until nobody is asked it any more."""
        while True:
            try:
                answered = await asyncio.to_thread(approving.answered, self.question)
            except ServiceUnreachable as error:
                self.log.warning("cannot look at question %s now: %s", self.question, error)
                answered = None
            if answered is not None:
                yield TriggerEvent({ANSWERED_ELSEWHERE: answered.value})
                return
            await asyncio.sleep(self.poll_seconds)
