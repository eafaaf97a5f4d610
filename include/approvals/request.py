"""A decision that only a person may take, as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from include.errors import UsageError
from include.intervals.boundaries import asked_interval
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.quarantine import Selection
from include.times import Interval, parse_time


class Choice(StrEnum):
    """What can be decided."""

    ACCEPT_LOSS = "accept loss"
    ADOPT = "adopt topic"
    LEAVE = "stop reading topic"
    NEW_GENERATION = "new generation"
    REPIN = "pin again"
    DISCARD = "discard from quarantine"
    REPAIR = "repair the catalog"


@dataclass(frozen=True)
class Request:
    """A decision that is asked for, with what it is about."""

    choice: Choice
    pipeline: Pipeline
    topic: str = ""
    selection: Selection = field(default_factory=Selection)
    interval: Interval | None = None

    @classmethod
    def of_form(cls, form: Mapping[str, Any]) -> Request:
        """Return the request of a filled form. Raises UsageError when something that the choice needs is missing."""
        choice, pipeline = Choice(form["decision"]), load_pipeline(str(form["pipeline"]))
        topic = str(form.get("topic") or "")
        selection, interval = Selection(), None
        if choice in _ABOUT and not topic:
            raise UsageError("the topic is missing", remedy=f"name the topic that {_ABOUT[choice]}")
        if choice is Choice.DISCARD:
            selection = Selection.of(
                pipeline,
                topic or None,
                partition=form.get("topic_partition"),
                offset=form.get("offset"),
                reason=form.get("reason_code") or None,
                topic_id=str(form.get("topic_id") or "") or None,
            )
            if selection.everything:
                raise UsageError("no record is named", remedy="give a reason code, or topic partition and offset")
        if choice is Choice.REPIN:
            if not (form.get("from") and form.get("to")):
                raise UsageError("the interval is missing", remedy="give its start and end")
            interval = asked_interval(pipeline, parse_time(str(form["from"])), parse_time(str(form["to"])))
        return cls(choice, pipeline, topic, selection, interval)


@dataclass(frozen=True)
class Decided:
    """What a person decided."""

    reason: str
    by: str
    agreed: Callable[[Iterable[str]], None]
    """Raises UsageError when these facts are not those that the person was shown."""


_ABOUT = {Choice.ADOPT: "was created again", Choice.LEAVE: "the source does not name any more"}
"""Which topic a choice is about."""
