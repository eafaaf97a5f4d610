"""One interval from its pinned ranges to revisions on their way: read, compare, aggregate, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import kafka
from include.code_version import decoder_version
from include.crash_points import crash_point
from include.ledger import intervals, losses, revisions
from include.ledger.decoders import decoded_otherwise, decoders_of
from include.ledger.intervals import AttemptSpec
from include.ledger.micro_batches import Fates
from include.ledger.revisions import BuiltRevision
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY, AdditiveView, Pipeline
from include.reconciliation import Reconciliation
from spark_jobs.accepted_losses import with_losses
from spark_jobs.archive_reader import read_archived, read_unarchived
from spark_jobs.archive_reconciliation import count_fates, reconcile_archive
from spark_jobs.code_changes import by_coordinates, note_changed_rows
from spark_jobs.content_hash import row_hashes
from spark_jobs.decoding.records import ARCHIVED, archive_rows, decode, load_references, transform
from spark_jobs.kafka_source import read_ranges
from spark_jobs.ledger_reconciliation import reconcile_with_ledger
from spark_jobs.pinned_fates import withhold_quarantined
from spark_jobs.replayed_rows import replayed_rows
from spark_jobs.report_data import collect_report
from spark_jobs.revision_comparison import compare_revisions
from spark_jobs.schemas import struct_of
from spark_jobs.table_writer import archive_schema, write_revisions
from spark_jobs.view_reconciliation import reconcile_view


def build(spark: SparkSession, pipeline: Pipeline, attempt: AttemptSpec) -> None:
    """Build the attempt's revisions and reconcile; everything found goes to the ledger.

    The ranges are read from Kafka once. The batch views are computed from that; the archive table's files
    are written from the landing files, or from the same read where other code landed them; both are
    compared before anybody may register them. Rows that replays put into the interval are added to both.
    Raises OffsetsLost when Kafka no longer holds the ranges, TopicRecreated when the topic is another.
    """
    pinned, found = attempt.pinned, Reconciliation()
    hash_1, hash_2 = row_hashes(archive_schema(pipeline).names)
    hashes = (hash_1.alias("hash_1"), hash_2.alias("hash_2"))
    landed = read_archived(spark, pipeline, pinned.ranges, mend_from_kafka=attempt.source == "kafka")
    landed_side = _with_unarchived(
        landed.select(F.lit(ARCHIVED).alias("outcome"), *IDENTITY, *hashes), spark, pipeline, attempt
    )
    replayed = replayed_rows(spark, pipeline, pinned)
    version = decoder_version(pipeline.name)
    otherwise: list[OffsetRange] = []
    changed = {"added": 0, "removed": 0, "changed": 0}
    lost = losses.accepted_in(pipeline.name, pinned.ranges)
    if attempt.source == "kafka":
        ranges = losses.without(pinned.ranges, lost)
        _check_topics(pipeline, attempt, ranges)
        otherwise = decoded_otherwise(pipeline.name, ranges, version)
        records = read_ranges(spark, ranges)
        decoded = decode(pipeline, *withhold_quarantined(spark, pipeline, pinned, otherwise, records))
        decoded = decoded.drop("key", "value", "headers", "date").persist(StorageLevel.MEMORY_AND_DISK)
        rows = archive_rows(pipeline, decoded)
        kafka_side = decoded.select(
            "outcome",
            *IDENTITY,
            *(
                F.when(F.col("outcome") == ARCHIVED, column).alias(f"hash_{n}")
                for n, column in enumerate((hash_1, hash_2), 1)
            ),
        )
        in_kafka, in_landing = (by_coordinates(side, otherwise) for side in (kafka_side, landed_side))
        fates, gaps = reconcile_archive(in_kafka, in_landing, (rows, landed), ranges, found)
        gaps = with_losses(pinned.ranges, ranges, gaps, lost, found)
        if otherwise:
            fates = {tp: counted.fates for tp, counted in count_fates(kafka_side).items()}
            changed = note_changed_rows(kafka_side, landed_side, otherwise, found)
    else:
        rows = landed
        fates, gaps = reconcile_with_ledger(pinned, landed_side, found)
        gaps = with_losses(pinned.ranges, pinned.ranges, gaps, lost, found)
    built = _write_archive(pipeline, attempt, replayed.added_to(rows if otherwise else landed))
    rows = replayed.added_to(rows)
    for view in pipeline.views:
        batch_view = _aggregate(spark, pipeline, view, rows).persist()
        reconcile_view(spark, pipeline, view, batch_view, pinned, found, replayed)
        built += _write_view(pipeline, attempt, view, batch_view)
    revisions.note_built(attempt.id, pinned.id, attempt.code_version, built)
    crash_point("revisions_noted")
    intervals.note_findings(
        attempt.id,
        report=collect_report(spark, pipeline, pinned, rows, built),
        revision_differences=compare_revisions(spark, pipeline, revisions.registered_of_interval(pinned.id), built),
        # What landed is what was delivered, unless it was read again.
        decoder_versions=[version] if attempt.source == "kafka" else decoders_of(pipeline.name, pinned.ranges),
        code_changes=changed,
    )
    _note(attempt, fates, gaps, found, replayed.records, sum(len(each.range) for each in lost))


def _with_unarchived(archived: DataFrame, spark: SparkSession, pipeline: Pipeline, attempt: AttemptSpec) -> DataFrame:
    unarchived = read_unarchived(spark, pipeline, attempt.pinned.ranges).withColumn("kafka_element", F.lit(0))
    nulls = (F.lit(None).cast("BIGINT").alias(name) for name in ("hash_1", "hash_2"))
    return archived.unionByName(unarchived.select("outcome", *IDENTITY, *nulls))


def _check_topics(pipeline: Pipeline, attempt: AttemptSpec, ranges: Sequence[OffsetRange]) -> None:
    topics = kafka.describe_topics(attempt.pinned.topic_ids)
    for topic, topic_id in attempt.pinned.topic_ids.items():
        kafka.check_same_topic(pipeline.name, topics.get(topic), topic, topic_id)
    kafka.check_retained(pipeline.name, ranges)


def _aggregate(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    counted = transform(pipeline, view.rows)(rows, load_references(spark, pipeline))
    aggregated: DataFrame = transform(pipeline, view.aggregate)(counted)
    return aggregated


def _write_archive(pipeline: Pipeline, attempt: AttemptSpec, landed: DataFrame) -> list[BuiltRevision]:
    dated = landed.withColumn("date", F.date_format("event_time", "yyyy-MM-dd"))
    return write_revisions(
        dated,
        table=pipeline.table,
        schema=archive_schema(pipeline),
        order=IDENTITY,
        partition_by=("date",),
        interval=attempt.pinned.interval,
        attempt=attempt.id,
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


def _note(
    attempt: AttemptSpec,
    fates: Mapping[TopicPartition, Fates],
    gaps: Mapping[TopicPartition, int],
    found: Reconciliation,
    replayed: int,
    lost: int,
) -> None:
    ranges = attempt.pinned.ranges
    if not found.unexplained:
        # Later attempts are held against these.
        intervals.note_fates(attempt.pinned, fates, gaps)
    per_partition = {
        str(r.topic_partition): {
            "archived": fates.get(r.topic_partition, Fates()).archived,
            "empty": fates.get(r.topic_partition, Fates()).empty,
            "quarantined": fates.get(r.topic_partition, Fates()).quarantined,
            "gaps": gaps[r.topic_partition],
        }
        for r in ranges
    }
    totals = {
        name: sum(counts[name] for counts in per_partition.values())
        for name in ("archived", "empty", "quarantined", "gaps")
    }
    intervals.note_findings(
        attempt.id,
        fates=per_partition,
        records={"in_ranges": sum(len(r) for r in ranges), **totals, "replayed": replayed, "lost": lost},
        reconciliation=found.counts(),
        differences=found.examples(),
    )
