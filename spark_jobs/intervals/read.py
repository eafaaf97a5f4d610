"""Reads an interval's ranges, from Kafka or only from the archive, and compares them with the archive.

The archive table's files are written on the way and read back: Kafka is compared with the rows of the files that may be
registered. Where both are the same, nothing more is read of either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.ledger.archive.decoders import decoded_otherwise, decoders_of, replaced_by_other_code
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.streams import losses
from include.offsets import Fate, Fates, OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY
from include.reconciliation import Reconciliation
from include.versions import decoder_version
from spark_jobs.archive.content_hash import HashVersion
from spark_jobs.archive.erased import erased_records, without_erased
from spark_jobs.archive.reader import read_archived, read_unarchived
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.intervals.losses import with_losses
from spark_jobs.intervals.pinned_fates import withhold_quarantined
from spark_jobs.reconciliation.against_kafka import (
    ArchiveComparison,
    compare_offsets,
    prove_missing,
    reconcile_archive,
)
from spark_jobs.reconciliation.against_ledger import differing_files, fewer_than_counted, reconcile_with_ledger
from spark_jobs.reconciliation.code_changes import (
    NO_CHANGES,
    by_coordinates,
    changed_rows,
    with_left_out,
    without_doubles,
)
from spark_jobs.reconciliation.compacted import find_compacted
from spark_jobs.reconciliation.counted import (
    CountedRows,
    added,
    check_written,
    count_fates,
    differing,
    hashed,
    hashed_coordinates,
)
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.kafka_source import read_ranges

Write = Callable[[DataFrame], CountedRows]
"""Writes the archive table's rows to its revisions, and returns what came back from the files."""


@dataclass(frozen=True)
class Reading:
    """An interval's rows, and what became of every offset."""

    rows: DataFrame
    """What views are computed from: the archive table's columns, and `event_time`."""
    fates: Mapping[TopicPartition, Fates]
    gaps: Mapping[TopicPartition, int]
    lost: int
    """Offsets of accepted losses among the gaps."""
    decoder_versions: Sequence[str]
    """Versions of the code that decoded the rows."""
    reconciliation: Reconciliation
    """Differences between the archive and the side that it was compared with."""
    changed: Mapping[str, int] = field(default_factory=lambda: dict(NO_CHANGES))
    """Rows that the current code adds, removes or changes against what other code landed."""
    compacted_since: int = 0
    """Records that only the archive still holds."""


def read_interval(run: IntervalRun, hashed_by: HashVersion, write: Write) -> Reading:
    """Read the interval's ranges from the attempt's source, and compare both.

    The archive table gets the landed rows, or the rows from Kafka where other code landed them. Raises OffsetsLost when
    Kafka no longer holds the ranges, TopicRecreated when the topic is another.
    """
    ranges = run.pinned.ranges
    rows = read_archived(run.spark, run.pipeline, ranges, run.damaged)
    landed = _Landed(run, hashed_by, rows, replaced_by_other_code(run.pipeline.name, ranges))
    read = _read_from_kafka if run.attempt.source is Source.KAFKA else _read_from_archive
    return read(run, landed, write)


@dataclass(frozen=True)
class _Landed:
    """The archive's rows of an interval, and its other records."""

    run: IntervalRun
    hashed_by: HashVersion
    rows: DataFrame
    replaced: Sequence[OffsetRange]
    """Where the rows are of other code than landed the other records: see `replaced_by_other_code`."""

    def unarchived(self) -> DataFrame:
        """Return the empty, quarantined and erased records, in the columns of `hashed`."""
        records = read_unarchived(self.run.spark, self.run.pipeline, self.run.pinned.ranges)
        return hashed_coordinates(without_doubles(records, self.rows, self.replaced))

    def records(self) -> DataFrame:
        """Return all of its records, in the columns of `hashed`."""
        return self.hashed(self.rows.withColumn("fate", F.lit(Fate.ARCHIVED))).unionByName(self.unarchived())

    def in_kafka(self, decoded: DataFrame) -> DataFrame:
        """Return Kafka's side: the decoded records, and the erased ones, which are not decoded again."""
        pipeline, ranges = self.run.pipeline.name, self.run.pinned.ranges
        return self.hashed(decoded).unionByName(hashed_coordinates(erased_records(self.run.spark, pipeline, ranges)))

    def hashed(self, rows: DataFrame) -> DataFrame:
        """Return rows of either side with the hashes by which they are compared."""
        return hashed(rows, archive_schema(self.run.pipeline), self.hashed_by)


def _read_from_kafka(run: IntervalRun, landed: _Landed, write: Write) -> Reading:
    """Read the ranges from Kafka, once, and compare them with the written rows; row by row only where they differ."""
    spark, pipeline, pinned = run.spark, run.pipeline, run.pinned
    lost = losses.not_archived_in(pipeline.name, pinned.ranges)
    ranges = losses.without(pinned.ranges, lost)
    _check_topics(pinned, ranges)
    version = decoder_version(pipeline.name)
    otherwise = decoded_otherwise(pipeline.name, ranges, version)
    records = without_erased(read_ranges(spark, ranges), pipeline.name, ranges)
    known = withhold_quarantined(spark, pipeline, pinned.ranges, pinned.topic_ids, otherwise, records)
    decoded = decode(pipeline, *known).drop("key", "value", "headers", "date")
    if otherwise:
        reading = _compare_changed_code(landed, decoded, ranges, otherwise, write)
        # Once more: rows of other code are compared by coordinates alone, which records of another topic share.
        _check_same_topics(pinned)
    else:
        # In parallel: an hour's rows are mostly written by one task.
        with ThreadPoolExecutor(max_workers=1) as beside:
            in_kafka = beside.submit(count_fates, landed.in_kafka(decoded))
            written = write(landed.rows)
            reading = _compare_written(landed, decoded, ranges, in_kafka.result(), written)
    if not reading.reconciliation.unexplained:
        # Else the missing rows themselves are named.
        counted = fewer_than_counted(pinned, reading.fates)
        reading = replace(reading, reconciliation=reading.reconciliation + counted)
    gaps, named = with_losses(pinned.ranges, ranges, reading.gaps, lost)
    return replace(
        reading,
        gaps=gaps,
        lost=losses.accepted_among(lost),
        decoder_versions=[version],
        reconciliation=reading.reconciliation + named,
    )


def _compare_written(
    landed: _Landed,
    decoded: DataFrame,
    ranges: Sequence[OffsetRange],
    in_kafka: CountedRows,
    written: CountedRows,
) -> Reading:
    """Compare what Kafka holds with the landed rows as they were written."""
    held = added(written, count_fates(landed.unarchived()))
    if differing(in_kafka, held):
        return _compare_landed(landed, decoded, ranges, held)
    # Both sides have the same records, and landing is cheaper to read.
    missing = prove_missing(_coordinates(landed), in_kafka, ranges)
    return _reading(landed.rows, compare_offsets(in_kafka, missing, ranges))


def _coordinates(landed: _Landed) -> DataFrame:
    """Return the coordinates of all landed records, and kafka_element."""
    return landed.rows.select(*IDENTITY).unionByName(landed.unarchived().select(*IDENTITY))


def _compare_landed(landed: _Landed, decoded: DataFrame, ranges: Sequence[OffsetRange], held: CountedRows) -> Reading:
    """Find the landed rows that differ from Kafka's, and check that exactly the landed rows were written."""
    kept = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    in_kafka, in_landing = _in_kafka(landed, kept, ranges), landed.records()
    compared = reconcile_archive(in_kafka.records, in_landing, (in_kafka.rows, landed.rows), ranges)
    written = check_written(count_fates(in_landing), held)
    # First what is known of a whole topic partition, then its rows.
    reconciliation = in_kafka.reconciliation + compared.reconciliation + written
    reading = _reading(in_kafka.rows, replace(compared, reconciliation=reconciliation))
    return replace(reading, compacted_since=in_kafka.compacted_since)


@dataclass(frozen=True)
class _InKafka:
    """Kafka's records of the ranges, and those that only the archive holds because Kafka compacted them since."""

    rows: DataFrame
    records: DataFrame
    """In the columns of `hashed`."""
    compacted_since: int = 0
    reconciliation: Reconciliation = field(default_factory=Reconciliation)


def _in_kafka(landed: _Landed, decoded: DataFrame, ranges: Sequence[OffsetRange]) -> _InKafka:
    rows, records = archive_rows(landed.run.pipeline, decoded), landed.in_kafka(decoded)
    compacted = find_compacted(landed.run.pinned, records, landed.records(), ranges)
    if compacted is None:
        return _InKafka(rows, records)
    return _InKafka(
        rows.unionByName(compacted.rows(landed.rows).select(*rows.columns)),
        records.unionByName(compacted.landed),
        compacted.records,
        compacted.reconciliation,
    )


def _compare_changed_code(
    landed: _Landed, decoded: DataFrame, ranges: Sequence[OffsetRange], otherwise: Sequence[OffsetRange], write: Write
) -> Reading:
    """Write the rows decoded from Kafka, and compare landing only by coordinates where other code landed it."""
    decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    in_kafka, in_landing = _in_kafka(landed, decoded, ranges), landed.records()
    rows = in_kafka.rows
    sides = [by_coordinates(side, otherwise) for side in (in_kafka.records, in_landing)]
    all_landed, left_out = with_left_out(sides[0], sides[1], landed.replaced)
    if landed.replaced:
        left_out += Reconciliation.of(differing_files(landed.run.pinned))
    compared = reconcile_archive(sides[0], all_landed, (rows, landed.rows), ranges)
    counted = count_fates(in_kafka.records)
    unarchived = count_fates(in_kafka.records.where(F.col("fate") != Fate.ARCHIVED))
    written = check_written(counted, added(write(rows), unarchived))
    counts, changes = changed_rows(in_kafka.records, in_landing, otherwise)
    return replace(
        _reading(rows, compared),
        fates={tp: each.fates for tp, each in counted.items()},
        reconciliation=in_kafka.reconciliation + compared.reconciliation + written + changes + left_out,
        changed=counts,
        compacted_since=in_kafka.compacted_since,
    )


def _reading(rows: DataFrame, compared: ArchiveComparison) -> Reading:
    return Reading(rows, compared.fates, compared.gaps, 0, (), compared.reconciliation)


def _read_from_archive(run: IntervalRun, landed: _Landed, write: Write) -> Reading:
    """Take the landed rows, and compare them with what the ledger recorded."""
    pipeline, pinned = run.pipeline, run.pinned
    lost = losses.not_archived_in(pipeline.name, pinned.ranges)
    records = landed.records()
    counted = count_fates(records)
    compared = reconcile_with_ledger(pinned, records, counted, lost)
    written = check_written(counted, added(write(landed.rows), count_fates(landed.unarchived())))
    gaps, named = with_losses(pinned.ranges, pinned.ranges, compared.gaps, lost)
    return Reading(
        landed.rows,
        compared.fates,
        gaps,
        losses.accepted_among(lost),
        decoders_of(pipeline.name, pinned.ranges),
        compared.reconciliation + written + named,
    )


def _check_topics(pinned: PinnedInterval, ranges: Sequence[OffsetRange]) -> None:
    _check_same_topics(pinned)
    kafka.check_retained(pinned.pipeline, ranges)


def _check_same_topics(pinned: PinnedInterval) -> None:
    # One without offsets here may have been deleted after the pipeline stopped reading it.
    read = {each.topic_partition.topic for each in pinned.ranges if len(each)}
    topics = kafka.describe_topics(read)
    for topic in sorted(read):
        kafka.check_same_topic(pinned.pipeline, topics.get(topic), topic, pinned.topic_ids[topic])
