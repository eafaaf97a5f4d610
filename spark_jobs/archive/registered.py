"""Archived rows whose landing files were removed, read from the registered revisions that still hold them.

Such a revision is the only copy of its rows in the lake. Where it is damaged, the read is refused, or its offsets are
decoded again from Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache, reduce
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import kafka, lake
from include.errors import OffsetsLost, TidemarkError
from include.lake.revision_files import damage_of, damaged_files, described
from include.ledger.archive.snapshots import RowsOfRanges, RowsOfTime
from include.ledger.lineage import BuiltRevision
from include.ledger.quarantine import replayed_within
from include.offsets import OffsetRange, TopicPartition, intersection
from include.pipelines.spec import Pipeline
from include.times import utc
from spark_jobs.archive.erased import without_erased
from spark_jobs.archive.files import (
    COORDINATE_COLUMNS,
    broadcast_few,
    read_files,
    read_quarantined,
    unless_too_many,
    within,
)
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.reasons import because
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.kafka_source import read_ranges
from spark_jobs.spark.log import log_of

Damaged = Literal["refuse", "decode again"]
"""What a read does about a damaged revision that is the only copy: raise, or take its offsets from Kafka."""

_Lost = tuple[str, Sequence[OffsetRange]]
"""The damage of an interval's revisions, and the offsets that only these hold."""


def read_registered(spark: SparkSession, pipeline: Pipeline, located: RowsOfRanges, damaged: Damaged) -> DataFrame:
    """Return the rows of ranges whose landing was removed. Columns: the archive table's.

    Raises TidemarkError when damage is refused, OffsetsLost when Kafka no longer holds the damaged offsets.
    """
    paths: list[str] = []
    lost: list[_Lost] = []
    for holding in located.holdings:
        if damage := damage_of(holding.revisions, records=holding.archived):
            lost.append((damage, holding.ranges))
        else:
            paths += [path for revision in holding.revisions for path in _files_of(revision)]
    rows = _read_revisions(spark, pipeline, paths, located.removed)
    return rows.unionByName(_decode_again(spark, pipeline, lost, damaged).drop("event_time")) if lost else rows


def read_registered_by_event_time(
    spark: SparkSession,
    pipeline: Pipeline,
    located: RowsOfTime,
    event_times: tuple[datetime, datetime],
    damaged: Damaged,
) -> DataFrame:
    """Return rows whose landing was removed, among them all with an event time in `[low, high)`.

    Columns: the archive table's. Revisions are chosen by the date of their partition, their files by the event times in
    their footers; only chosen files are read, or decoded again. Raises as `read_registered`.
    """
    low, high = event_times
    paths: list[str] = []
    lost: list[_Lost] = []
    for interval_id, revisions in located.revisions.items():
        files, damage = _files_with_event_times(pipeline, revisions, low, high)
        if not damage:
            paths += files
        elif held := _common(located.ranges[interval_id], located.removed):
            lost.append((damage, held))
    rows = _read_revisions(spark, pipeline, paths, located.removed)
    if lost:
        # All rows of these files; the caller leaves out those with another event time, as it does with whole files.
        rows = rows.unionByName(_decode_again(spark, pipeline, lost, damaged).drop("event_time"))
    return rows


def _read_revisions(
    spark: SparkSession, pipeline: Pipeline, paths: Sequence[str], removed: Sequence[OffsetRange]
) -> DataFrame:
    """Return the rows of tables without those that replays delivered: the stream landed their records in quarantine."""
    rows = read_files(spark, paths, archive_schema(pipeline), pipeline.archive.formerly).where(within(removed))
    replayed = replayed_within(pipeline.name, removed)
    if not replayed:
        return rows
    coordinates = frame_of(spark, replayed, COORDINATE_COLUMNS)
    return rows.join(broadcast_few(coordinates, len(replayed)), coordinates.columns, "left_anti")


def _files_with_event_times(
    pipeline: Pipeline, revisions: Iterable[BuiltRevision], low: datetime, high: datetime
) -> tuple[list[str], str]:
    """Return the files that may hold such rows, and the damage of their revisions (empty for none)."""
    chosen: list[str] = []
    for revision in revisions:
        # Check the footers of all candidates, but every byte only of revisions that are read.
        damage = next(damaged_files(revision.location, revision.files, deep=False), None)
        wanted = (
            [] if damage else [path for path in _files_of(revision) if _may_hold(pipeline, revision, path, low, high)]
        )
        if wanted:
            damage = next(damaged_files(revision.location, revision.files, deep=True), None)
        if damage:
            return [], described(revision, damage)
        chosen += wanted
    return chosen, ""


def _may_hold(pipeline: Pipeline, revision: BuiltRevision, path: str, low: datetime, high: datetime) -> bool:
    noted = revision.files[path.rsplit("/", 1)[-1]].get("event_time")
    try:
        if noted is None:
            # Built before event times were noted; such files are Parquet.
            bounds = lake.time_bounds(lake.read_footer(path), pipeline.archive.event_time)
        else:
            bounds = utc(datetime.fromisoformat(noted[0])), utc(datetime.fromisoformat(noted[1]))
    except (pa.ArrowException, OSError, ValueError):
        # The footer cannot be read; the file's hash will show the damage.
        return True
    if bounds is None:
        return True
    first, last = bounds
    return first < high and last >= low


def _decode_again(spark: SparkSession, pipeline: Pipeline, lost: Sequence[_Lost], damaged: Damaged) -> DataFrame:
    """Return the lost rows, decoded again from Kafka. Columns: the archive table's, and `event_time`."""
    for damage, ranges in lost:
        if damaged == "refuse":
            raise _only_copy(pipeline, damage)
        try:
            kafka.check_retained(pipeline.name, ranges)
        except OffsetsLost as gone:
            raise OffsetsLost(
                f"{damage}; the landing files of its offsets were removed, and Kafka no longer holds all of them: "
                f"{gone.message}",
                remedy="restore the file",
                pipeline=pipeline.name,
            ) from gone
        _warn_once(pipeline.name, f"{damage}; these offsets are read from Kafka again")
    parts = [_decode_ranges(spark, pipeline, ranges) for _, ranges in lost]
    # A comparison reads the rows many times; Kafka is read once.
    return reduce(DataFrame.unionByName, parts).persist()


def _decode_ranges(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Decode an interval's ranges from Kafka; records that landed in quarantine stay there, undecoded."""
    hulls = _hulls(ranges)
    held = read_quarantined(spark, pipeline, hulls).withColumn("held", F.lit(True))
    at = [F.col(name) == F.col(f"kafka_{name}") for name in ("topic", "partition", "offset")]
    records = without_erased(read_ranges(spark, hulls), pipeline.name, hulls)
    records = records.join(unless_too_many(held, pipeline, hulls), at, "left")
    withheld = F.when(F.col("held"), because("quarantined", "it landed in quarantine"))
    return archive_rows(pipeline, decode(pipeline, records, withheld)).where(within(ranges))


def _hulls(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return one range per topic partition, spanning all of its ranges: a read of Kafka takes only one each."""
    by_topic_partition: dict[TopicPartition, list[OffsetRange]] = {}
    for each in ranges:
        by_topic_partition.setdefault(each.topic_partition, []).append(each)
    return [
        OffsetRange(tp, min(r.from_offset for r in parts), max(r.until_offset for r in parts))
        for tp, parts in sorted(by_topic_partition.items())
    ]


def _common(ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]) -> list[OffsetRange]:
    return [common for each in ranges for other in others if (common := intersection(each, other))]


def _only_copy(pipeline: Pipeline, damage: str) -> TidemarkError:
    return TidemarkError(
        f"{damage}; the landing files of its offsets were removed",
        remedy="./tidemark doctor --deep names the interval: run it again while Kafka holds its offsets, "
        "or restore the file",
        pipeline=pipeline.name,
    )


def _files_of(revision: BuiltRevision) -> list[str]:
    return [f"{revision.location}/{name}" for name in sorted(revision.files)]


@cache
def _warn_once(pipeline: str, text: str) -> None:
    log_of(pipeline).warning("%s", text)
