"""Which archives are also kept as Delta tables."""

from __future__ import annotations

from include import lake
from include.lake import object_store
from include.pipelines import all_pipelines
from include.pipelines.spec import Pipeline


def is_kept(pipeline: Pipeline) -> bool:
    """Whether the pipeline's archive is also kept as a Delta table.

    In a bucket it is not, whatever is declared: there Delta cannot keep two drivers, a stream's and an interval's,
    from committing the same version, and one of the two would be lost.
    """
    return pipeline.archive.delta and not object_store.holds(lake.root())


def are_kept() -> bool:
    """Whether any is, so that the catalog may have views of them."""
    return any(is_kept(pipeline) for pipeline in all_pipelines())
