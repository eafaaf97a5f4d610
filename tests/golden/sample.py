"""Lines of a pipeline's sample, and their event times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from include.pipelines.spec import Pipeline
from include.scaffold.schema import value_at


def lines_of(text: str) -> list[str]:
    """The lines of a file of JSON objects: `splitlines` also splits at characters that a value may have, as U+2028."""
    return [line for line in text.split("\n") if line]


def event_time(pipeline: Pipeline, message: dict[str, Any]) -> datetime:
    """The event time of a message of the sample."""
    # The archive's column may have another name than the message's field, if Tidemark has a column of that name.
    path = pipeline.archive.event_time
    top, _, rest = path.partition(".")
    found = value_at(message, path) or value_at(message, ".".join(filter(None, (top.removesuffix("_"), rest))))
    return datetime.fromisoformat(found)
