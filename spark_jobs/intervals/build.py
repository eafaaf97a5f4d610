"""One interval from its pinned ranges to revisions on their way: read, compare, aggregate, write."""

from __future__ import annotations

from include.ledger.archive.micro_batches import Fates
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.revisions import BuiltRevision
from pyspark.sql import DataFrame, SparkSession

from include.crash_points import crash_point
from include.ledger.intervals import attempts, revisions
from include.offsets import TopicPartition
from include.pipelines.spec import IDENTITY, AdditiveView, Pipeline
from include.reconciliation import Reconciliation
from spark_jobs.archive.reader import read_archived
from spark_jobs.archive.registered import Damaged
from spark_jobs.archive.replayed import replayed_rows
from spark_jobs.archive.schema import archive_schema, with_partition_columns
from spark_jobs.archive.storage import check_storage
from spark_jobs.decoding.records import load_references
from spark_jobs.intervals.read import Reading, read_from_archive, read_from_kafka
from spark_jobs.intervals.report_sections import collect_report
from spark_jobs.intervals.revision_comparison import compare_revisions
from spark_jobs.intervals.write import write_revisions
from spark_jobs.reconciliation.flags import reconcile_flags
from spark_jobs.reconciliation.views import reconcile_view
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.aggregate import aggregate_view


def build(spark: SparkSession, pipeline: Pipeline, attempt: AttemptSpec) -> None:
    """Build the attempt's revisions and reconcile; everything found goes to the ledger.

    The ranges are read from Kafka once. The batch views are computed from that; the archive table's files
    are written from the landing files, or from the same read where other code landed them; both are
    compared before anybody may register them. Rows that replays put into the interval are added to both.
    Raises OffsetsLost when Kafka no longer holds the ranges, TopicRecreated when the topic is another, UsageError
    when the registered files are of another format.
    """
    check_storage(pipeline)
    pinned, found = attempt.pinned, Reconciliation()
    damaged: Damaged = "decode again" if attempt.source == "kafka" else "refuse"
    landed = read_archived(spark, pipeline, pinned.ranges, damaged)
    read = read_from_kafka if attempt.source == "kafka" else read_from_archive
    reading = read(spark, pipeline, pinned, landed, found)
    replayed = replayed_rows(spark, pipeline, pinned)
    built = _write_archive(pipeline, attempt, replayed.added_to(reading.archive))
    rows = replayed.added_to(reading.rows)
    for view in pipeline.views:
        batch_view = aggregate_view(pipeline, view, rows, load_references(spark, pipeline)).persist()
        reconcile_view(spark, pipeline, view, batch_view, pinned, found, replayed, damaged)
        built += _write_view(pipeline, attempt, view, batch_view)
    if pipeline.flags:
        # Not of replayed rows: the stream saw those records in quarantine.
        reconcile_flags(spark, pipeline, reading.rows, pinned, found)
    revisions.note_built(attempt.id, pinned.id, attempt.code_version, built)
    crash_point("revisions_noted")
    attempts.note_findings(
        attempt.id,
        report=collect_report(spark, pipeline, pinned, rows, built),
        revision_differences=compare_revisions(spark, pipeline, revisions.registered_of_interval(pinned.id), built),
        decoder_versions=list(reading.decoder_versions),
        code_changes=reading.changed,
    )
    _note(attempt, reading, found, replayed.records)


def _write_archive(pipeline: Pipeline, attempt: AttemptSpec, landed: DataFrame) -> list[BuiltRevision]:
    return write_revisions(
        with_partition_columns(pipeline, landed),
        table=pipeline.table,
        schema=archive_schema(pipeline),
        order=IDENTITY,
        partition_by=pipeline.archive.partition_columns,
        interval=attempt.pinned.interval,
        attempt=attempt.id,
        file_format=pipeline.archive.file_format,
        event_time=pipeline.archive.event_time,
    )


def _write_view(pipeline: Pipeline, attempt: AttemptSpec, view: AdditiveView, rows: DataFrame) -> list[BuiltRevision]:
    return write_revisions(
        rows,
        table=pipeline.view_table(view),
        schema=struct_of(view.columns),
        order=view.key,
        partition_by=(),
        interval=attempt.pinned.interval,
        attempt=attempt.id,
    )


def _note(attempt: AttemptSpec, reading: Reading, found: Reconciliation, replayed: int) -> None:
    ranges = attempt.pinned.ranges
    if not found.unexplained:
        # Later attempts are held against these.
        attempts.note_fates(attempt.pinned, reading.fates, reading.gaps)
    per_partition = {str(r.topic_partition): _fates_of(reading, r.topic_partition) for r in ranges}
    totals = {
        name: sum(counts[name] for counts in per_partition.values())
        for name in ("archived", "empty", "quarantined", "gaps")
    }
    in_ranges = sum(len(r) for r in ranges)
    attempts.note_findings(
        attempt.id,
        fates=per_partition,
        records={"in_ranges": in_ranges, **totals, "replayed": replayed, "lost": reading.lost},
        reconciliation=found.counts(),
        differences=found.examples(),
    )


def _fates_of(reading: Reading, tp: TopicPartition) -> dict[str, int]:
    fates = reading.fates.get(tp, Fates())
    return {
        "archived": fates.archived,
        "empty": fates.empty,
        "quarantined": fates.quarantined,
        "gaps": reading.gaps[tp],
    }
