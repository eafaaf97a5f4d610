"""Tell which pipelines keep their archive as a Delta table, too."""

from __future__ import annotations

from include import lake
from include.lake import object_store
from include.pipelines import all_pipelines
from include.pipelines.spec import Pipeline


def has_delta_table(pipeline: Pipeline) -> bool:
    """Return whether the pipeline's archive is also kept as a Delta table.

    Never in a bucket, whatever is declared: there Delta cannot prevent the stream's driver and an interval's driver
    from committing the same version, and one of the two commits would be lost.
    """
    return pipeline.archive.delta and not object_store.is_bucket_uri(lake.root())


def any_delta_table() -> bool:
    """Return whether any pipeline has a Delta table, so that the catalog may hold views of it."""
    return any(has_delta_table(pipeline) for pipeline in all_pipelines())
