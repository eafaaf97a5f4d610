"""The declared pipelines: each module here with a `PIPELINE` is one, named like its file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from include.errors import UsageError
from include.pipelines.spec import Pipeline

_NOT_PIPELINES = frozenset({"spec"})


def pipeline_names() -> tuple[str, ...]:
    """Names of all declared pipelines, sorted."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_PIPELINES))


@cache
def load_pipeline(name: str) -> Pipeline:
    """The declared pipeline of that name. Raises UsageError when there is none."""
    if name not in pipeline_names():
        raise UsageError(f"unknown pipeline {name!r}", remedy=f"one of: {', '.join(pipeline_names())}")
    pipeline = importlib.import_module(f"{__name__}.{name}").PIPELINE
    if not isinstance(pipeline, Pipeline) or pipeline.name != name:
        raise UsageError(f"include/pipelines/{name}.py declares no PIPELINE named {name!r}")
    return pipeline


def all_pipelines() -> tuple[Pipeline, ...]:
    """All declared pipelines, by name."""
    return tuple(load_pipeline(name) for name in pipeline_names())
