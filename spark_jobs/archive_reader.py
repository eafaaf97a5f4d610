"""Reads of the archive: landing, empty and quarantine files of the ledger, and what became of removed ones."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include import kafka, lake
from include.errors import TidemarkError
from include.ledger import landing, micro_batches
from include.ledger.incarnations import closed
from include.ledger.models import Revision
from include.ledger.quarantine import replayed_within
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.revision_files import damaged_files
from spark_jobs.decoding.records import ARCHIVED, EMPTY, QUARANTINED, archive_rows, decode, failure
from spark_jobs.kafka_source import read_ranges
from spark_jobs.local_frames import empty_frame, frame_of
from spark_jobs.schemas import struct_of
from spark_jobs.table_writer import archive_schema

EVER = (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""All event times that a reader means who bounds none."""

_COORDINATES = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"


def within(ranges: Iterable[OffsetRange]) -> Column:
    """Whether a row's coordinates lie in one of the ranges."""
    conditions = [
        (F.col("kafka_topic") == r.topic_partition.topic)
        & (F.col("kafka_partition") == r.topic_partition.partition)
        & (F.col("kafka_offset") >= r.from_offset)
        & (F.col("kafka_offset") < r.until_offset)
        for r in ranges
        if len(r)
    ]
    return reduce(Column.__or__, conditions, F.lit(False))


def read_files(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of files (URIs, or paths below the lake) with that schema; none for no files."""
    if not paths:
        return empty_frame(spark, schema)
    return spark.read.schema(schema).parquet(*(path if "://" in path else lake.uri(path) for path in paths))


def read_archived(
    spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange], *, mend_from_kafka: bool = False
) -> DataFrame:
    """Archived rows of the ranges, each once. Columns: the archive table's, and `event_time`.

    They lie in landing files, or, where housekeeping has removed these, in the registered revisions of the
    intervals that hold the offsets. Where such a revision is damaged, `mend_from_kafka` decodes its offsets
    again. Raises TidemarkError when a damaged one is the only copy.
    """
    paths = micro_batches.files_covering(pipeline.name, ranges, ARCHIVED)
    rows = read_files(spark, paths, archive_schema(pipeline)).where(within(ranges))
    removed = landing.removed_ranges(pipeline.name, ranges)
    if removed:
        rows = rows.unionByName(_read_registered(spark, pipeline, removed, mend_from_kafka=mend_from_kafka))
    return _with_event_time(pipeline, rows)


def _read_registered(
    spark: SparkSession, pipeline: Pipeline, removed: Sequence[OffsetRange], *, mend_from_kafka: bool
) -> DataFrame:
    paths: list[str] = []
    lost: list[OffsetRange] = []
    for holding in landing.holdings(pipeline.name, pipeline.table, removed):
        if not (damage := holding.damage()):
            paths += [path for revision in holding.revisions for path in _files_of(revision)]
        elif mend_from_kafka:
            print(f"tidemark: {damage}; these offsets are read from Kafka again", file=sys.stderr, flush=True)
            lost += holding.ranges
        else:
            raise _only_copy(pipeline, damage)
    rows = read_files(spark, paths, archive_schema(pipeline)).where(within(removed))
    rows = _without_replayed(spark, pipeline, removed, rows)
    if lost:
        kafka.check_retained(pipeline.name, lost)
        again = _decode_again(spark, pipeline, _hulls(lost)).where(within(lost))
        rows = rows.unionByName(archive_rows(pipeline, again).drop("event_time"))
    return rows


def _without_replayed(
    spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange], rows: DataFrame
) -> DataFrame:
    """Rows of tables without those that replays delivered: their records were quarantined, the stream landed none."""
    replayed = replayed_within(pipeline.name, ranges)
    if not replayed:
        return rows
    coordinates = frame_of(spark, replayed, _COORDINATES)
    return rows.join(F.broadcast(coordinates), coordinates.columns, "left_anti")


def _decode_again(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """What Kafka holds of the ranges, decoded; what landed in quarantine stays there, undecoded."""
    held = read_quarantined(spark, pipeline, ranges).withColumn("held", F.lit(True))
    at = [F.col(name) == F.col(f"kafka_{name}") for name in ("topic", "partition", "offset")]
    records = read_ranges(spark, ranges).join(F.broadcast(held), at, "left")
    return decode(pipeline, records, F.when(F.col("held"), failure("quarantined", F.lit("it landed in quarantine"))))


def _hulls(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range per topic partition that spans all of its ranges: a read of Kafka takes no more."""
    by_topic_partition: dict[TopicPartition, list[OffsetRange]] = {}
    for each in ranges:
        by_topic_partition.setdefault(each.topic_partition, []).append(each)
    return [
        OffsetRange(tp, min(r.from_offset for r in parts), max(r.until_offset for r in parts))
        for tp, parts in sorted(by_topic_partition.items())
    ]


def read_archived_by_event_time(spark: SparkSession, pipeline: Pipeline, low: datetime, high: datetime) -> DataFrame:
    """Archived rows with an event time in `[low, high)`, each once.

    Columns: the archive table's, `event_time`, and `closed_topic_id`.

    Landing files are chosen by their event times in the ledger, registered revisions, where landing was removed,
    by the date of their partition and the event times in their footers. `closed_topic_id` is the id of a
    topic that was deleted since, and empty for rows of the one that is read now.
    """
    paths = micro_batches.files_with_event_times(pipeline.name, low, high)
    rows = _read_incarnations(spark, pipeline, paths)
    candidates = landing.revisions_with_dates(pipeline.table, low.date(), high.date())
    offsets = landing.ranges_of_intervals(revision.interval_id for revision in candidates)
    removed = landing.removed_ranges(pipeline.name, offsets)
    if removed:
        registered = [path for each in candidates for path in _files_with_event_times(pipeline, each, low, high)]
        kept = read_files(spark, registered, archive_schema(pipeline)).where(within(removed))
        kept = kept.withColumn("closed_topic_id", F.lit(""))
        rows = rows.unionByName(_without_replayed(spark, pipeline, removed, kept))
    event_time = F.col("event_time")
    return _with_event_time(pipeline, rows).where((event_time >= F.lit(low)) & (event_time < F.lit(high)))


def _read_incarnations(spark: SparkSession, pipeline: Pipeline, paths: Sequence[str]) -> DataFrame:
    """The rows of landing files. Columns: the archive table's, and `closed_topic_id`."""
    schema, gone = archive_schema(pipeline), closed(pipeline.name)
    if not gone:
        return read_files(spark, paths, schema).withColumn("closed_topic_id", F.lit(""))
    incarnations: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path, topic_ids in micro_batches.topic_ids_of_files(paths).items():
        old = tuple(sorted((topic, each) for topic, each in topic_ids.items() if each in gone))
        incarnations.setdefault(old, []).append(path)
    parts = [
        read_files(spark, files, schema).withColumn("closed_topic_id", _closed_topic_id(old))
        for old, files in sorted(incarnations.items())
    ]
    empty = read_files(spark, [], schema).withColumn("closed_topic_id", F.lit(""))
    return reduce(DataFrame.unionByName, parts, empty)


def _closed_topic_id(topic_ids: Iterable[tuple[str, str]]) -> Column:
    known = [F.when(F.col("kafka_topic") == topic, F.lit(topic_id)) for topic, topic_id in topic_ids]
    return F.coalesce(*known, F.lit(""))


def within_incarnation(ranges: Iterable[OffsetRange], gone: Collection[str]) -> Column:
    """Whether a row with `closed_topic_id` lies in one of the ranges, in the range's own incarnation of the topic."""
    conditions = [
        within([r]) & (F.col("closed_topic_id") == F.lit(r.topic_id if r.topic_id in gone else ""))
        for r in ranges
        if len(r)
    ]
    return reduce(Column.__or__, conditions, F.lit(False))


def _files_with_event_times(pipeline: Pipeline, revision: Revision, low: datetime, high: datetime) -> list[str]:
    # Footers of all candidates, bytes of those alone that are read.
    for deep in (False, True):
        damage = next(damaged_files(revision.location, revision.files, deep=deep), None)
        if damage is not None:
            raise _only_copy(pipeline, f"{revision.table_name} {revision.table_partition}: {damage}")
        found = [path for path in _files_of(revision) if _may_hold(pipeline, path, low, high)]
        if not found:
            break
    return found


def _may_hold(pipeline: Pipeline, path: str, low: datetime, high: datetime) -> bool:
    bounds = lake.column_bounds(lake.footer(path), pipeline.archive.event_time)
    if bounds is None:
        return True
    first, last = (t if t.tzinfo else t.replace(tzinfo=UTC) for t in bounds if isinstance(t, datetime))
    return first < high and last >= low


def _only_copy(pipeline: Pipeline, damage: str) -> TidemarkError:
    return TidemarkError(
        f"{damage}; the landing files of its offsets were removed",
        remedy="./tidemark doctor names the interval: run it again while Kafka holds its offsets, or restore the file",
        pipeline=pipeline.name,
    )


def _files_of(revision: Revision) -> list[str]:
    return [f"{revision.location}/{name}" for name in sorted(revision.files)]


def read_replayed(spark: SparkSession, pipeline: Pipeline, paths: Sequence[str]) -> DataFrame:
    """Rows that replays landed. Columns: the archive table's, and `event_time`."""
    return _with_event_time(pipeline, read_files(spark, paths, archive_schema(pipeline)))


def read_quarantined(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Coordinates of the quarantined records of the ranges."""
    paths = micro_batches.files_covering(pipeline.name, ranges, QUARANTINED)
    return read_files(spark, paths, struct_of(_COORDINATES)).where(within(ranges))


def read_unarchived(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Empty and quarantined records of the ranges. Columns: outcome and coordinates."""
    schema = struct_of(_COORDINATES)
    frames = [
        read_files(spark, micro_batches.files_covering(pipeline.name, ranges, outcome), schema).select(
            F.lit(outcome).alias("outcome"), "*"
        )
        for outcome in (EMPTY, QUARANTINED)
    ]
    return frames[0].unionByName(frames[1]).where(within(ranges))


def _with_event_time(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    return rows.withColumn("event_time", F.col(pipeline.archive.event_time))
