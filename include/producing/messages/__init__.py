"""Generators of messages, a module per pipeline: `message` returns a valid one, `bad_messages` invalid ones."""

from __future__ import annotations

import importlib
from datetime import datetime
from types import ModuleType

from include.pipelines.spec import Pipeline


def format_milliseconds(moment: datetime) -> str:
    """Return a time in UTC as messages have it: `2026-11-20T05:00:00.000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def file_of(pipeline: Pipeline) -> str:
    """Return the path of the pipeline's generator in the project, whether it is there or not."""
    return f"include/producing/messages/{pipeline.code}.py"


def module_of(pipeline: Pipeline) -> ModuleType | None:
    """Return the module of the pipeline's generator; None when it is not there."""
    name = f"{__name__}.{pipeline.code}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the file itself imports may be missing, too.
        if error.name != name:
            raise
    return None
