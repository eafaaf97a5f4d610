"""Reads of the archive: files that the ledger lists, and registered revisions where landing files were removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger.archive import landing_files, snapshots
from include.ledger.erasures.coordinates import being_erased, in_file
from include.ledger.streams.incarnations import closed
from include.offsets import Fate, OffsetRange, merged
from include.pipelines.spec import EVENT_TIMES, Pipeline
from spark_jobs.archive.erased import erased_records, without, without_erased
from spark_jobs.archive.files import COORDINATE_COLUMNS, any_of, read_files, within
from spark_jobs.archive.registered import Damaged, read_registered, read_registered_by_event_time
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.schemas import struct_of

CLOSED_TOPIC_ID = "tidemark_closed_topic_id"
"""Column of rows with the id of their topic, where that was deleted since; empty for rows of the current topic."""


def read_archived(
    spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange], damaged: Damaged = "refuse"
) -> DataFrame:
    """Return the archived rows of the ranges, each once. Columns: the archive table's, and `event_time`.

    They come from landing files or, where housekeeping has removed these, from the registered revisions of the
    intervals that hold the offsets. Raises TidemarkError when the only copy is damaged and `damaged` is "refuse",
    OffsetsLost when it is to be decoded again and Kafka no longer holds its offsets.
    """
    located = snapshots.rows_of_ranges(pipeline.name, pipeline.table, ranges)
    rows = read_files(spark, located.paths, archive_schema(pipeline), pipeline.archive.formerly).where(within(ranges))
    if located.removed:
        rows = rows.unionByName(read_registered(spark, pipeline, located, damaged))
    return _with_event_time(pipeline, without_erased(rows, pipeline.name, ranges))


def read_archived_by_event_time(
    spark: SparkSession, pipeline: Pipeline, low: datetime, high: datetime, damaged: Damaged = "refuse"
) -> DataFrame:
    """Return the archived rows with an event time in `[low, high)`, each once; for `EVENT_TIMES`, also those without.

    Columns: the archive table's, `event_time`, and `tidemark_closed_topic_id`.

    Landing files are chosen by their event times in the ledger. Where landing was removed, registered revisions are
    chosen by the date of their partition and the event times in their footers. Raises as `read_archived`.
    """
    every = (low, high) == EVENT_TIMES
    located = snapshots.rows_of_time(pipeline.name, pipeline.table, low, high, undated=every)
    gone = closed(pipeline.name)
    rows = _read_incarnations(spark, pipeline, located.paths, gone)
    if located.removed:
        kept = read_registered_by_event_time(spark, pipeline, located, (low, high), damaged)
        # No two incarnations have an offset in common whose landing was removed: a topic is adopted only behind these,
        # and none are removed after that. So coordinates tell all, whatever the topic's id.
        kept = without(kept, in_file(being_erased(pipeline.name), {}))
        ranges = (each for parts in located.ranges.values() for each in parts)
        rows = rows.unionByName(kept.withColumn(CLOSED_TOPIC_ID, _closed_topic_id_within(ranges, gone)))
    rows = _with_event_time(pipeline, rows)
    # It may be a date or a text.
    event_time = F.col("event_time").try_cast("timestamp")
    inside = (event_time >= F.lit(low)) & (event_time < F.lit(high))
    return rows.where(inside | event_time.isNull() if every else inside)


def _read_incarnations(
    spark: SparkSession, pipeline: Pipeline, paths: Sequence[str], gone: Collection[str]
) -> DataFrame:
    """Return the rows of landing files, without records that are being erased; `gone` are the closed topics' ids.

    Columns: the archive table's, and `tidemark_closed_topic_id`.
    """
    erased = being_erased(pipeline.name)
    schema, formerly = archive_schema(pipeline), pipeline.archive.formerly
    if not gone:
        rows = without(read_files(spark, paths, schema, formerly), in_file(erased, {}))
        return rows.withColumn(CLOSED_TOPIC_ID, F.lit(""))
    incarnations: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path, topic_ids in landing_files.topic_ids_of_files(paths).items():
        incarnations.setdefault(tuple(sorted(topic_ids.items())), []).append(path)
    parts = [
        without(read_files(spark, files, schema, formerly), in_file(erased, dict(topic_ids))).withColumn(
            CLOSED_TOPIC_ID, _closed_topic_id(each for each in topic_ids if each[1] in gone)
        )
        for topic_ids, files in sorted(incarnations.items())
    ]
    empty = read_files(spark, [], schema).withColumn(CLOSED_TOPIC_ID, F.lit(""))
    return reduce(DataFrame.unionByName, parts, empty)


def _closed_topic_id(topic_ids: Iterable[tuple[str, str]]) -> Column:
    known = [F.when(F.col("kafka_topic") == topic, F.lit(topic_id)) for topic, topic_id in topic_ids]
    return F.coalesce(*known, F.lit(""))


def _closed_topic_id_within(ranges: Iterable[OffsetRange], gone: Collection[str]) -> Column:
    """Return the closed topic's id of the range that a row lies in; empty for rows of the current topic."""
    by_topic_id: dict[str, list[OffsetRange]] = {}
    for each in ranges:
        if each.topic_id in gone:
            by_topic_id.setdefault(each.topic_id, []).append(each)
    known = [F.when(within(merged(parts)), F.lit(topic_id)) for topic_id, parts in sorted(by_topic_id.items())]
    return F.coalesce(*known, F.lit(""))


def within_incarnation(ranges: Iterable[OffsetRange], gone: Collection[str]) -> Column:
    """Return whether a row with its closed topic id lies in one of the ranges, in its incarnation of the topic."""
    conditions = [
        within([r]) & (F.col(CLOSED_TOPIC_ID) == F.lit(r.topic_id if r.topic_id in gone else ""))
        for r in ranges
        if len(r)
    ]
    return any_of(conditions)


def read_replayed(spark: SparkSession, pipeline: Pipeline, paths: Sequence[str]) -> DataFrame:
    """Return the rows that replays landed. Columns: the archive table's, and `event_time`."""
    rows = _read_incarnations(spark, pipeline, paths, closed(pipeline.name)).drop(CLOSED_TOPIC_ID)
    return _with_event_time(pipeline, rows)


def read_unarchived(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the empty, quarantined and erased records of the ranges. Columns: fate and coordinates."""
    schema = struct_of(COORDINATE_COLUMNS)
    frames = [
        read_files(spark, landing_files.files_covering(pipeline.name, ranges, fate), schema).select(
            F.lit(fate).alias("fate"), "*"
        )
        for fate in (Fate.EMPTY, Fate.QUARANTINED)
    ]
    records = frames[0].unionByName(frames[1]).where(within(ranges))
    return without_erased(records, pipeline.name, ranges).unionByName(erased_records(spark, pipeline.name, ranges))


def _with_event_time(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    return rows.withColumn("event_time", F.col(pipeline.archive.event_time))
