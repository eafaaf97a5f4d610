"""Which pipelines also keep their archive as a Delta table."""

from __future__ import annotations

from include.pipelines import all_pipelines
from include.pipelines.spec import Pipeline


def has_delta_table(pipeline: Pipeline) -> bool:
    """Return whether the pipeline's archive is also kept as a Delta table."""
    return pipeline.archive.delta


def any_delta_table() -> bool:
    """Return whether any pipeline has a Delta table, so that the catalog may hold views of it."""
    return any(has_delta_table(pipeline) for pipeline in all_pipelines())
