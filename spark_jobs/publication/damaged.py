"""Intervals that were left out of the Delta table and whose registered files are damaged."""

from __future__ import annotations

from collections.abc import Iterable

from include.lake import below_lake
from include.lake.revision_files import damaged_files, described
from include.ledger.intervals import revisions
from include.ledger.intervals.revisions import LeftOut
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline
from spark_jobs.spark.log import log_of


def damaged_intervals(pipeline: Pipeline, left_out: Iterable[LeftOut], *, deep: bool) -> dict[int, str]:
    """Return the labels of those whose registered files are not as they were built, by id, and log them.

    They must not fail the publications of others. `deep` also compares SHA-256s: that reads every file.
    """
    damaged: dict[int, str] = {}
    for each in left_out:
        of_table = _of_table(pipeline, each)
        wrong = ((it, file) for it in of_table for file in damaged_files(it.location, it.files, deep=deep))
        if (first := next(wrong, None)) is not None:
            damaged[each.interval_id] = each.interval.label
            log_of(pipeline.name).warning(
                "%s stays left out of the Delta table: %s; put the file back, or run the interval again",
                each.interval,
                described(*first),
            )
    return damaged


def with_file(pipeline: Pipeline, left_out: Iterable[LeftOut], path: str) -> list[LeftOut]:
    """Return that of the intervals whose registered files have this path below the lake, if there is one."""
    return [
        each
        for each in left_out
        if any(path.startswith(f"{below_lake(it.location)}/") for it in _of_table(pipeline, each))
    ]


def _of_table(pipeline: Pipeline, each: LeftOut) -> list[BuiltRevision]:
    return [it for it in revisions.registered_of_interval(each.interval_id) if it.table == pipeline.table]
