"""Watches a question that a person may also answer outside of Airflow, so that its run does not wait for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.errors import ServiceUnreachable
from include.intervals import approving

ANSWERED_ELSEWHERE = "answered elsewhere"
"""Key of the event's payload, which an answer in Airflow does not have."""


_LONGEST_PAUSE = 60.0


class DecisionTrigger(BaseTrigger):
    """Fires when a question was decided by `./tidemark approve`, is asked no longer, or has an answer in Airflow.

    Airflow's API server itself resumes a deferred task with an answer. One that came between the question and the
    deferral it only keeps, and refuses any other.
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
        began = time.monotonic()
        while True:
            event = await asyncio.to_thread(self._look)
            if event is not None:
                yield TriggerEvent(event)
                return
            await asyncio.sleep(self.pause(time.monotonic() - began))

    def pause(self, waited: float) -> float:
        """Return the seconds until the next look: longer ones after a while, for hundreds of questions may wait."""
        return max(self.poll_seconds, min(waited / 10, _LONGEST_PAUSE))

    def _look(self) -> dict[str, Any] | None:
        """Return the event of a decision or an answer; None without one, and while it cannot be read."""
        try:
            answered = approving.answered(self.question)
            return {ANSWERED_ELSEWHERE: answered.value} if answered is not None else self._answer_in_airflow()
        except (ServiceUnreachable, AirflowRuntimeError) as error:
            self.log.warning("cannot look at question %s now: %s", self.question, error)
            return None

    def _answer_in_airflow(self) -> dict[str, Any] | None:
        """Return the answer that Airflow keeps, in the form in which its API server hands it over."""
        if self.task_instance is None:
            return None
        kept = get_hitl_detail_content_detail(self.task_instance.id)
        if not (kept.response_received and kept.chosen_options):
            return None
        return {
            "chosen_options": list(kept.chosen_options),
            "params_input": kept.params_input or {},
            "responded_by_user": kept.responded_by_user and kept.responded_by_user.model_dump(),
        }
