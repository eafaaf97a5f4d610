"""The validated part of a Delta archive: registered rows in one of its versions, to which a view is pinned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog import DATABASE
from include.catalog.delta_view import lag_of_view
from include.crash_points import crash_point
from include.errors import FileUnreadable, LockLost, ReconciliationFailed, ServiceUnreachable, TidemarkError
from include.iceberg.statement import statement_of
from include.ledger import inventory, proofs
from include.ledger.archive.holdings import ranges_of_intervals
from include.ledger.held_locks import Check
from include.ledger.intervals import attempts, builds, locks, revisions
from include.ledger.intervals.findings import DeltaVersion
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import LeftOut
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import (
    ensure_table,
    latest_version,
    others_keep_writing,
    replace_rows,
    within_sql,
)
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.publication.damaged import damaged_intervals, with_file
from spark_jobs.publication.delta_versions import RESTORED, has_foreign_writes, pin_view, pinned_version
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.failures import SPARK_FAILURES, translate
from spark_jobs.spark.log import log_of
from spark_jobs.spark.thrown import unread_file

TRIES = 5
"""How often the table is written when somebody else changes it meanwhile."""

ONE_BY_ONE = 20
"""How many intervals get a commit each; where the table lacks more, the rows of all are written by one."""


def publish_delta(run: IntervalRun, check: Check) -> None:
    """Put the interval's registered rows into the Delta table, and pin the view to the version that has them.

    So are the rows of intervals that were registered and left out of it: by a killed publication, or while the table
    was not declared. Where somebody else has changed the table since the view was pinned, the rows of all intervals are
    written again. The view does not show later appends and changes. Raises what `check` raises before each change, and
    FileUnreadable for a registered file that is missing or damaged.
    """
    version = _put_and_pin(run.spark, run.pipeline, check, run.pinned)
    assert version is not None  # Its own rows are always put.
    builds.note_delta(run.attempt, DeltaVersion(f"{DATABASE}.{run.pipeline.delta_view}", version))


def put_left_out(spark: SparkSession, pipeline: Pipeline) -> None:
    """Put the rows of intervals that were left out into the Delta table, as the next publication does; pin a lost view.

    Raises FileUnreadable for a registered file that is missing or damaged, of an interval that was not left out.
    """
    if pipeline.archive.delta and (revisions.left_out_of_delta(pipeline.name) or lag_of_view(pipeline)):
        version = _put_and_pin(spark, pipeline, lambda: None)
        last = inventory.last_delta(pipeline.name)
        if version is not None and last is not None and version < last[1]:
            # The table was made anew, and its versions began again.
            attempts.note_delta_anew(last[0], DeltaVersion(f"{DATABASE}.{pipeline.delta_view}", version))


def _put_and_pin(
    spark: SparkSession, pipeline: Pipeline, check: Check, own: PinnedInterval | None = None
) -> int | None:
    """Put the rows of intervals that were left out, then those of `own`; return the version that the view shows.

    None when there are no such rows, and the view is not lost. Where a lock is lost, the last change may have undone
    another publication's: it is waited for, and the registered rows are put again. Where it cannot be done, they are
    left out, as `doctor` finds. Raises FileUnreadable for a registered file that cannot be read.
    """
    labels: dict[int, str] = {}
    try:
        return _put_alone(spark, pipeline, check, own, labels)
    except LockLost:
        with following_lost_lock(pipeline):
            _put_alone(spark, pipeline, lambda: None, own, labels)
        raise
    except SPARK_FAILURES as error:
        known = translate(error)
        if not isinstance(known, ReconciliationFailed):
            raise
        which = str(own.interval) if own is not None else "an interval"
        raise FileUnreadable(
            f"{which} is registered, but the Delta table lacks its rows: {known.message.split('; ')[0]}",
            remedy="put the file back, or run its interval again (./tidemark doctor --deep names it)",
            pipeline=pipeline.name,
        ) from error


@contextmanager
def following_lost_lock(pipeline: Pipeline) -> Iterator[None]:
    """Log why the Delta table cannot be written again after a lock was lost; the caller raises that loss."""
    try:
        yield
    except (TidemarkError, *SPARK_FAILURES) as error:
        known = error if isinstance(error, TidemarkError) else translate(error)
        if known is None:
            raise
        told = known.message.split("; ")[0]
        log_of(pipeline.name).warning("the Delta table was not written again after a lock was lost: %s", told)


def _put_alone(
    spark: SparkSession, pipeline: Pipeline, check: Check, own: PinnedInterval | None, labels: dict[int, str]
) -> int | None:
    """Put the rows of the intervals of `labels`, too; those whose rows may have been changed are added to it."""
    with locks.publishing_delta(pipeline.name) as check_delta:

        def check_both() -> None:
            check()
            check_delta()

        ensure_table(spark, pipeline)
        left_out = revisions.left_out_of_delta(pipeline.name, own.id if own else None)
        others = [each for each in left_out if own is None or each.interval_id != own.id]
        # To hash the files of many takes longer than others wait for the lock.
        damaged = damaged_intervals(pipeline, others, deep=len(others) <= ONE_BY_ONE)
        while True:
            try:
                return _put_undamaged(spark, pipeline, check_both, own, labels, left_out, damaged)
            except SPARK_FAILURES as error:
                unread = with_file(pipeline, others, unread_file(error))
                found = damaged_intervals(pipeline, unread, deep=True)
                if found.keys() <= damaged.keys():
                    raise
                damaged |= found


def _put_undamaged(
    spark: SparkSession,
    pipeline: Pipeline,
    check: Check,
    own: PinnedInterval | None,
    labels: dict[int, str],
    left_out: Sequence[LeftOut],
    damaged: Mapping[int, str],
) -> int | None:
    put = [each for each in left_out if each.interval_id not in damaged]
    for interval in damaged:
        labels.pop(interval, None)
    labels.update((each.interval_id, each.interval.label) for each in put)
    if own is not None:
        # The last: its statement is that of a commit with the rows of all.
        labels.pop(own.id, None)
        labels[own.id] = own.interval.label
    if not labels and not lag_of_view(pipeline):
        return None
    try:
        version = _put_rows(spark, pipeline, labels, pinned_version(spark, pipeline), check, damaged)
        crash_point("delta_rows_put")
        check()
        pin_view(spark, pipeline, version)
        check()
    except LockLost:
        # The last commit may have come after another publication's, and hold an earlier build's rows.
        with suppress(ServiceUnreachable):
            revisions.leave_out_of_delta(labels)
        raise
    # Those that were read before the rows: a build that was published meanwhile is still to come.
    revisions.note_in_delta(build for each in put for build in each.builds)
    return version


def pin_newest(spark: SparkSession, pipeline: Pipeline) -> None:
    """Pin the view to the newest version with only registered rows, if there is a view."""
    with locks.publishing_delta(pipeline.name) as check:
        pinned = pinned_version(spark, pipeline)
        if pinned is not None:
            version = _put_rows(spark, pipeline, {}, pinned, check)
            check()
            pin_view(spark, pipeline, version)


def restore_rows(
    spark: SparkSession,
    pipeline: Pipeline,
    properties: Mapping[str, str],
    *delivered: int,
    without: Collection[int] = (),
    kept: Collection[str] = (),
) -> int | None:
    """Write the rows of all registered intervals, and no others, into the table again; return the commit's version.

    `delivered`: more intervals; `without`: intervals whose rows are left out; `kept`: the labels of those of them whose
    rows of earlier builds stay as they are.
    """
    registered = revisions.registered(pipeline.table, pipeline=pipeline.name)
    every = [each for each in registered if each.interval_id not in without]
    files = [f"{each.location}/{name}" for each in every for name in sorted(each.files)]
    intervals = {*delivered, *(each.interval_id for each in every)}
    stay = ", ".join(f"'{label}'" for label in kept)
    validated = f"interval IS NOT NULL AND interval NOT IN ({stay})" if stay else "interval IS NOT NULL"
    return _replace(spark, pipeline, validated, intervals, files, properties)


def _replace(
    spark: SparkSession,
    pipeline: Pipeline,
    validated: str,
    delivered: Collection[int],
    files: list[str],
    properties: Mapping[str, str],
) -> int | None:
    streamed = f"interval IS NULL AND ({within_sql(ranges_of_intervals(delivered))})"
    return replace_rows(pipeline, f"{validated} OR ({streamed})", _rows(spark, pipeline, files), properties)


def _put_rows(
    spark: SparkSession,
    pipeline: Pipeline,
    labels: Mapping[int, str],
    trusted: int | None,
    check: Check,
    damaged: Mapping[int, str] = MappingProxyType({}),
) -> int:
    """Write until a version holds only registered rows where `interval` is not null; return that version.

    Version `trusted` already met this condition, but for these intervals and `damaged` ones. If others have written
    since, or publications of a ledger that is lost, the rows of all intervals are written. What others commit after the
    last write is not in the version that is returned, and a write that changes nothing makes none. Rows that `damaged`
    intervals have there stay, unless somebody else may have changed them.
    """
    for _ in range(TRIES):
        version = before = latest_version(spark, pipeline)
        put = {*labels.values(), *damaged.values()}
        is_trusted = trusted is not None and not has_foreign_writes(spark, pipeline, trusted, before, put)
        if not is_trusted or len(labels) > ONE_BY_ONE:
            check()
            summary = _summary(pipeline, [*labels][-1]) if labels else {}
            said = {**summary, RESTORED: "all registered intervals"}
            kept = damaged.values() if is_trusted else ()
            version = restore_rows(spark, pipeline, said, *labels, without=damaged, kept=kept) or version
        else:
            for interval, label in labels.items():
                check()
                every = revisions.registered_of_interval(interval)
                of_table = [each for each in every if each.table == pipeline.table]
                files = [f"{each.location}/{name}" for each in of_table for name in sorted(each.files)]
                said = _summary(pipeline, interval)
                version = _replace(spark, pipeline, f"interval = '{label}'", {interval}, files, said) or version
        if not has_foreign_writes(spark, pipeline, before, version):
            return version
        trusted = None
    raise others_keep_writing(pipeline)


def _summary(pipeline: Pipeline, interval: int) -> dict[str, str]:
    """Return the commit's statement about the interval, the same as in the summary of an Iceberg snapshot."""
    build = proofs.build_to_prove(interval)
    if build is None:
        return {}
    registered = revisions.registered_of_interval(interval)
    of_archive = [each for each in registered if each.table == pipeline.table]
    return statement_of(attempts.of_build(build)).summary(of_archive)


def _rows(spark: SparkSession, pipeline: Pipeline, files: list[str]) -> DataFrame:
    """Return the rows of files of revisions, with the interval that their folder names."""
    rows = read_files(spark, files, archive_schema(pipeline))
    return rows.withColumn("interval", F.regexp_extract(F.input_file_name(), ".*/interval=([^/]+)/", 1))
