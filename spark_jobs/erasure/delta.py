"""Erases records from a Delta archive: rows, older versions, and the values that its log repeats."""

from __future__ import annotations

from pyspark.sql import SparkSession

from include.crash_points import crash_point
from include.erasure.names import names_being_erased
from include.errors import LockLost
from include.lake.delta_log import forget_values
from include.ledger.erasures.unfinished import records_of, twins_of
from include.ledger.intervals import locks
from include.ledger.intervals.revisions import left_out_of_delta
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import (
    delete_older_files,
    delete_records,
    latest_version,
    location,
    write_checkpoint,
)
from spark_jobs.publication.delta import following_lost_lock, pin_newest, restore_rows
from spark_jobs.publication.delta_versions import has_foreign_writes, pin_view, pinned_version


def erase_from_delta(spark: SparkSession, pipeline: Pipeline, erasure: int, lease: Lease) -> None:
    """Remove an erasure's records from every version of a Delta table. Nothing may append to it meanwhile.

    The log keeps its transactions and what commits state about intervals. Time travel begins at a new version, to which
    the view is pinned before older files are deleted. Repeating it changes nothing.
    Raises AnotherWriter when the lease was lost before files are deleted: others may be writing some. Raises LockLost,
    after which the view shows what was published meanwhile.
    """
    try:
        _erase_alone(spark, pipeline, erasure, lease)
    except LockLost:
        with following_lost_lock(pipeline):
            pin_newest(spark, pipeline)
        raise


def _erase_alone(spark: SparkSession, pipeline: Pipeline, erasure: int, lease: Lease) -> None:
    erased = {each.coordinates for each in records_of(erasure)}
    with locks.publishing_delta(pipeline.name) as check:
        pinned = pinned_version(spark, pipeline)
        # A killed publication may have put rows that no view was pinned to: the next one puts them again. Where two
        # builds were left out, these may be the former one's, and the view is pinned to them here.
        put = {each.interval.label for each in left_out_of_delta(pipeline.name) if len(each.builds) == 1}
        if pinned is not None and has_foreign_writes(spark, pipeline, pinned, latest_version(spark, pipeline), put):
            restore_rows(spark, pipeline, {})
        delete_records(spark, pipeline, erased, twins_of(erasure))
        crash_point("delta_rows_erased")
        version = write_checkpoint(spark, pipeline)
        crash_point("delta_checkpoint_written")
        if pinned is not None:
            check()
            pin_view(spark, pipeline, version)
        crash_point("delta_view_pinned")
        check()
        writers.renew(lease)
        delete_older_files(spark, pipeline)
        crash_point("delta_files_deleted")
        forget_values(location(pipeline), version, names_being_erased(pipeline).text)
