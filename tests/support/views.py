"""What a declared view makes of the rows it counts, by its transform and in its windows."""

from __future__ import annotations

from typing import Any

from include.pipelines import load_pipeline


def aggregated(name: str, view: str, counted: Any) -> Any:
    """Return the rows of a pipeline's view for rows that its `rows` transform selected."""
    from spark_jobs.decoding.records import transform
    from spark_jobs.views.windows import window_column

    pipeline = load_pipeline(name)
    declared = next(each for each in pipeline.views if each.name == view)
    windows = [] if declared.is_total else [window_column(declared)]
    return transform(pipeline, declared.aggregate)(counted, *windows)
