"""Limits that flags are raised by, as registered revisions give them and the ledger can keep them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from include.ledger.lineage import BuiltRevision
from include.ledger.streams.flags import FLAGS
from include.pipelines.spec import AdditiveView, Limit, Pipeline
from spark_jobs.archive.files import read_files
from spark_jobs.spark.log import log_of
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.flags import learn_limits


def learned(
    spark: SparkSession, pipeline: Pipeline, views: Sequence[AdditiveView], revisions: Sequence[BuiltRevision]
) -> list[Limit]:
    """Return the limits that the pipeline's transform learns from revisions of the views' tables, in a fixed order."""

    def rows_of(view: AdditiveView) -> DataFrame:
        own = [r for r in revisions if r.table == pipeline.view_table(view)]
        paths = [f"{r.location}/{name}" for r in own for name in r.files]
        return read_files(spark, paths, struct_of(view.columns), view.formerly)

    return learn_limits(pipeline, {view.name: rows_of(view) for view in views})


def storable(pipeline: Pipeline, limits: Sequence[Limit]) -> list[Limit]:
    """Return the limits that the ledger can hold: rule and subject are there, and have no character NUL.

    Whatever is flagged is recomputed by what the ledger holds: the others must not be in force.
    """
    there = (each for each in limits if None not in (each.rule, each.subject))
    kept = [each for each in there if "\0" not in each.rule + each.subject]
    if left_out := [(each.rule or "?").replace("\0", "?") for each in limits if each not in kept]:
        log_of(pipeline.name, FLAGS).warning(
            "%s learned limits are not in force, because their subject is null or has the character NUL; "
            "their rules: %s",
            *(len(left_out), ", ".join(sorted(set(left_out)))),
        )
    return kept
