"""Reads an interval's ranges and holds what it finds against the archive: from Kafka, or from the archive alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import kafka
from include.ledger.archive.decoders import decoded_otherwise, decoders_of
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.streams import losses
from include.offsets import Fate, Fates, OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY, Pipeline
from include.reconciliation import Reconciliation
from include.versions import decoder_version
from spark_jobs.archive.content_hash import row_hashes
from spark_jobs.archive.reader import read_archived, read_unarchived
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.intervals.losses import with_losses
from spark_jobs.intervals.pinned_fates import withhold_quarantined
from spark_jobs.reconciliation.against_kafka import count_fates, reconcile_archive
from spark_jobs.reconciliation.against_ledger import reconcile_with_ledger
from spark_jobs.reconciliation.code_changes import NO_CHANGES, by_coordinates, changed_rows
from spark_jobs.reconciliation.compacted import find_compacted
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.kafka_source import read_ranges


@dataclass(frozen=True)
class Reading:
    """An interval's rows, and what became of every offset."""

    rows: DataFrame
    """What views are computed from: the archive table's columns, and `event_time`."""
    archive: DataFrame
    """What the archive table gets; landed rows, where the code that landed them is the current one."""
    fates: Mapping[TopicPartition, Fates]
    gaps: Mapping[TopicPartition, int]
    lost: int
    """Offsets of accepted losses among the gaps."""
    decoder_versions: Sequence[str]
    """Versions of the code that decoded the rows."""
    reconciliation: Reconciliation
    """What differs between the archive and what it was held against."""
    changed: Mapping[str, int] = field(default_factory=lambda: dict(NO_CHANGES))
    """Rows that the current code adds, removes or changes against what other code landed."""
    compacted_since: int = 0
    """Records that only the archive holds any more."""


def read_interval(run: IntervalRun) -> Reading:
    """Read the interval's ranges from the attempt's source, and compare them with what they should be.

    Raises OffsetsLost when Kafka no longer holds the ranges, TopicRecreated when the topic is another.
    """
    landed = read_archived(run.spark, run.pipeline, run.pinned.ranges, run.damaged)
    read = _read_from_kafka if run.attempt.source is Source.KAFKA else _read_from_archive
    return read(run, landed)


def _read_from_kafka(run: IntervalRun, landed: DataFrame) -> Reading:
    """Read the ranges from Kafka, once, and compare them with the archive's rows."""
    spark, pipeline, pinned = run.spark, run.pipeline, run.pinned
    lost = losses.accepted_in(pipeline.name, pinned.ranges)
    ranges = losses.without(pinned.ranges, lost)
    _check_topics(pipeline, pinned, ranges)
    version = decoder_version(pipeline.name)
    otherwise = decoded_otherwise(pipeline.name, ranges, version)
    records = withhold_quarantined(spark, pipeline, pinned, otherwise, read_ranges(spark, ranges))
    decoded = decode(pipeline, *records).drop("key", "value", "headers", "date")
    decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    rows = archive_rows(pipeline, decoded)
    in_kafka, in_landing = _hashed(pipeline, decoded), _landed_side(spark, pipeline, pinned, landed)
    compacted = find_compacted(pinned, in_kafka, in_landing, ranges)
    if compacted is not None:
        in_kafka = in_kafka.unionByName(compacted.landed)
        rows = rows.unionByName(compacted.rows(landed).select(*rows.columns))
    sides = [by_coordinates(side, otherwise) for side in (in_kafka, in_landing)]
    compared = reconcile_archive(sides[0], sides[1], (rows, landed), ranges)
    gaps, named = with_losses(pinned.ranges, ranges, compared.gaps, lost)
    offsets_lost = sum(len(each.range) for each in lost)
    reconciliation = compared.reconciliation + named
    gone = 0
    if compacted is not None:
        gone, reconciliation = compacted.records, reconciliation + compacted.reconciliation
    if not otherwise:
        return Reading(
            rows, landed, compared.fates, gaps, offsets_lost, [version], reconciliation, compacted_since=gone
        )
    fates = {tp: counted.fates for tp, counted in count_fates(in_kafka).items()}
    counts, changes = changed_rows(in_kafka, in_landing, otherwise)
    return Reading(rows, rows, fates, gaps, offsets_lost, [version], reconciliation + changes, counts, gone)


def _read_from_archive(run: IntervalRun, landed: DataFrame) -> Reading:
    """Take the rows that were landed, and compare them with what the ledger recorded."""
    spark, pipeline, pinned = run.spark, run.pipeline, run.pinned
    lost = losses.accepted_in(pipeline.name, pinned.ranges)
    compared = reconcile_with_ledger(pinned, _landed_side(spark, pipeline, pinned, landed))
    gaps, named = with_losses(pinned.ranges, pinned.ranges, compared.gaps, lost)
    versions = decoders_of(pipeline.name, pinned.ranges)
    offsets_lost = sum(len(each.range) for each in lost)
    return Reading(landed, landed, compared.fates, gaps, offsets_lost, versions, compared.reconciliation + named)


def _check_topics(pipeline: Pipeline, pinned: PinnedInterval, ranges: Sequence[OffsetRange]) -> None:
    topics = kafka.describe_topics(pinned.topic_ids)
    for topic, topic_id in pinned.topic_ids.items():
        kafka.check_same_topic(pipeline.name, topics.get(topic), topic, topic_id)
    kafka.check_retained(pipeline.name, ranges)


def _hashed(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """Columns: fate, the identity columns, hash_1 and hash_2 (null unless archived)."""
    hashes = row_hashes(archive_schema(pipeline).names)
    kept = (F.when(F.col("fate") == Fate.ARCHIVED, each).alias(f"hash_{n}") for n, each in enumerate(hashes, 1))
    return decoded.select("fate", *IDENTITY, *kept)


def _landed_side(spark: SparkSession, pipeline: Pipeline, pinned: PinnedInterval, landed: DataFrame) -> DataFrame:
    """The archive's rows and its other records of the ranges, in the columns of `_hashed`."""
    archived = _hashed(pipeline, landed.withColumn("fate", F.lit(Fate.ARCHIVED)))
    unarchived = read_unarchived(spark, pipeline, pinned.ranges).withColumn("kafka_element", F.lit(0))
    nulls = (F.lit(None).cast("BIGINT").alias(name) for name in ("hash_1", "hash_2"))
    return archived.unionByName(unarchived.select("fate", *IDENTITY, *nulls))
