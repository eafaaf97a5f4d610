"""The archive query's sink: one micro-batch to landing files and quarantine, committed in the ledger."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

from include import kafka, lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.lake import delta_tables
from include.ledger.archive import micro_batches
from include.ledger.archive.failures import note_failure
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, Fates
from include.ledger.streams import writers
from include.offsets import Coordinates, OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.versions import decoder_version
from spark_jobs.archive.delta import append_batch
from spark_jobs.decoding.poison import find_poison, thrown_by
from spark_jobs.decoding.records import ARCHIVED, QUARANTINED, decode, withhold
from spark_jobs.spark.checkpoint import read_batch
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate
from spark_jobs.spark.kafka_source import read_ranges

IDENTICAL = 3
"""After so many failures of the same kind a micro-batch is searched for a record that throws."""

TRIES = 9
"""The most writes of a micro-batch, whatever they fail with."""

QUARANTINE_COLUMNS = [
    "kafka_topic",
    "kafka_partition",
    "kafka_offset",
    "kafka_timestamp",
    "key",
    "value",
    "headers",
    "reason",
    "detail",
]


@dataclass
class LandingSink:
    """Lands the decoded records of micro-batches (`spark_jobs/decoding/records.py`) and commits them."""

    pipeline: Pipeline
    lease: writers.Lease
    query_id: str
    checkpoint: str
    on_commit: Callable[[BatchCommit], None]
    searching: threading.Event = field(default_factory=threading.Event)
    """Set while a record that makes the batch throw is searched."""

    def land(self, decoded: DataFrame, batch_id: int) -> None:
        """Land and commit one micro-batch; a replay of a committed one does nothing.

        Order: exact ranges from the write-ahead log; one write, partitioned by fate and date, without
        a record that makes it throw;
        what was written is read back and counted per topic partition; quarantined records move to the
        quarantine under a name that a replay would overwrite; the Delta table's transaction, which a replay
        finds done; the ledger's transaction. Until that, nothing of the batch is part of the archive.
        """
        started = time.monotonic()
        if micro_batches.is_committed(self.query_id, batch_id):
            return
        planned = read_batch(self.checkpoint, batch_id)
        crash_point("batch_planned")
        name = f"{self.query_id[:8]}-{batch_id:09d}"
        folder = lake.uri("landing", self.pipeline.name, f"{name}-{self.lease.token}")
        diverted = self._write(decoded, batch_id, planned.ranges, folder)
        crash_point("landing_written")
        files, fates = self._count(folder)
        _check_counts(self.pipeline, planned.ranges, fates)
        files = move_quarantined(self.pipeline, files, name, QUARANTINE_COLUMNS)
        crash_point("quarantine_moved")
        topics = kafka.describe_topics(r.topic_partition.topic for r in planned.ranges)
        for topic, stored in micro_batches.stored_topics(self.pipeline.name).items():
            kafka.check_same_topic(self.pipeline.name, topics.get(topic), topic, stored)
        if delta_tables.is_kept(self.pipeline):
            self._append_to_delta(decoded.sparkSession, files, batch_id)
        batch = BatchCommit(
            pipeline=self.pipeline.name,
            query=ARCHIVE,
            query_id=self.query_id,
            batch_id=batch_id,
            ranges=planned.ranges,
            topics=topics,
            fates=fates,
            files=files,
            rows=sum(file.rows for file in files),
            seconds=time.monotonic() - started,
            decoder_version=decoder_version(self.pipeline.name),
            diverted=diverted,
        )
        micro_batches.commit(self.lease, batch)
        crash_point("batch_committed")
        self.on_commit(batch)

    def _append_to_delta(self, spark: SparkSession, files: Sequence[LandingFile], batch_id: int) -> None:
        # Delta knows no lease: a driver that has lost its own gets no further than this.
        writers.renew(self.lease)
        landed = [file.path for file in files if file.fate == ARCHIVED]
        append_batch(spark, self.pipeline, landed, self.query_id, batch_id)
        crash_point("delta_committed")

    def _write(
        self, decoded: DataFrame, batch_id: int, ranges: list[OffsetRange], folder: str
    ) -> dict[Coordinates, str]:
        """Write the decoded records; those that had to be taken out, with what they threw.

        A write that fails is tried again; after `IDENTICAL` failures of the same kind, restarts included,
        the record that throws is searched. Where none is found (a full disk), nothing is taken out.
        """
        for _ in range(TRIES):
            try:
                write_landing(decoded, folder)
            except SPARK_FAILURES as error:
                if translate(error) is not None:
                    raise
                cause = root_cause(error)
                failed = note_failure(self.pipeline.name, ARCHIVE, self.query_id, batch_id, cause)
                if failed >= IDENTICAL:
                    break
            else:
                return {}
        self.searching.set()
        try:
            return self._divert(decoded.sparkSession, batch_id, ranges, folder, cause)
        finally:
            self.searching.clear()

    def _divert(
        self, spark: SparkSession, batch_id: int, ranges: list[OffsetRange], folder: str, cause: str
    ) -> dict[Coordinates, str]:
        """Find the records that throw and write the batch with these in quarantine, undecoded."""

        def decoded(part: Sequence[OffsetRange], withheld: Column | None = None) -> DataFrame:
            return decode(self.pipeline, read_ranges(spark, part), withheld)

        poison = find_poison(ranges, lambda part: thrown_by(decoded(part)))
        if not poison:
            raise TidemarkError(
                f"micro-batch {batch_id} ({', '.join(map(str, ranges))}) could not be written, though all its records "
                f"decode: {cause}",
                remedy=f"nothing was committed; see to {lake.root()} (room, permissions) and start again",
                pipeline=self.pipeline.name,
            )
        write_landing(decoded(ranges, withhold(poison)), folder)
        return poison

    def _count(self, folder: str) -> tuple[list[LandingFile], dict[TopicPartition, Fates]]:
        """What the written files really hold: files with rows and event times, records per topic partition."""
        counts: dict[TopicPartition, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        files = []
        for file, parquet in read_back(self.pipeline, folder):
            for tp, records in records_of(parquet):
                counts[tp][file.fate] += records
            files.append(file)
        return files, {tp: Fates(**by_fate) for tp, by_fate in counts.items()}


def write_landing(decoded: DataFrame, folder: str) -> None:
    """Write decoded records to a folder of the landing, by fate and date; what lay there is replaced."""
    lake.delete(folder)
    unlike = {f"parquet.enable.dictionary#{path}": "false" for path in _unlike(decoded.schema)}
    decoded.write.options(**unlike).partitionBy("fate", "date").parquet(folder)


def _unlike(schema: StructType, parent: str = "") -> Iterator[str]:
    """Paths of the columns whose values are seldom alike: offsets, times, and what is measured.

    Parquet would look up each of them in a dictionary, find after a page that it does not help, and write all again:
    a tenth of what landing costs.
    """
    for each in schema.fields:
        path = f"{parent}{each.name}"
        if isinstance(each.dataType, StructType):
            yield from _unlike(each.dataType, f"{path}.")
        elif path == "kafka_offset" or isinstance(each.dataType, DoubleType | FloatType | TimestampType):
            yield path


def read_back(pipeline: Pipeline, folder: str) -> Iterator[tuple[LandingFile, pq.ParquetFile]]:
    """What a folder of the landing really holds: each file with its rows and event times, open."""
    for found in lake.list_files(folder):
        location = f"{folder}/{found.name}"
        fate = found.name.split("/", 1)[0].removeprefix("fate=")
        with lake.parquet_file(location) as parquet:
            bounds = lake.column_bounds(parquet.metadata, pipeline.archive.event_time)
            times = bounds and _utc(*bounds)
            rows = parquet.metadata.num_rows
            yield LandingFile(fate, lake.below_lake(location), rows, found.bytes, times), parquet


def records_of(parquet: pq.ParquetFile) -> Iterator[tuple[TopicPartition, int]]:
    """How many records' rows a landing file holds, by topic partition; of a record of several, the first one counts.

    Spark reads each topic partition by a task of its own, so of most files the footer says it all.
    """
    names = ["kafka_topic", "kafka_partition", "kafka_element"]
    topic, partition, element = (lake.constant(parquet.metadata, name) for name in names)
    if isinstance(topic, str) and isinstance(partition, int) and element == 0:
        yield TopicPartition(topic, partition), parquet.metadata.num_rows
        return
    table = parquet.read(columns=names)
    firsts = table.filter(pc.equal(table["kafka_element"], 0))
    for group in firsts.group_by(names[:2]).aggregate([([], "count_all")]).to_pylist():
        yield TopicPartition(group["kafka_topic"], group["kafka_partition"]), group["count_all"]


def move_quarantined(
    pipeline: Pipeline, files: Sequence[LandingFile], name: str, columns: list[str]
) -> list[LandingFile]:
    """Rewrite a batch's quarantined records, with only these columns, into one file of `quarantine/<pipeline>/`."""
    kept = [file for file in files if file.fate != QUARANTINED]
    paths = sorted(file.path for file in files if file.fate == QUARANTINED)
    if not paths:
        return kept
    target = lake.uri("quarantine", pipeline.name, f"{name}.parquet")
    _merge(paths, target, columns)
    for path in paths:
        lake.delete_file(lake.uri(path))
    rows = sum(file.rows for file in files if file.fate == QUARANTINED)
    return [*kept, LandingFile(QUARANTINED, lake.below_lake(target), rows, lake.size(target))]


def _check_counts(pipeline: Pipeline, ranges: list[OffsetRange], fates: dict[TopicPartition, Fates]) -> None:
    planned = {r.topic_partition: r for r in ranges}
    for tp, found in fates.items():
        if tp not in planned or found.records > len(planned[tp]):
            raise TidemarkError(
                f"{found.records} records were read of {planned.get(tp, tp)}: more than it has offsets",
                remedy="report this; nothing was committed",
                pipeline=pipeline.name,
            )


def _utc(low: object, high: object) -> tuple[datetime, datetime]:
    assert isinstance(low, datetime)
    assert isinstance(high, datetime)
    return tuple(t if t.tzinfo else t.replace(tzinfo=UTC) for t in (low, high))  # type: ignore[return-value]


def _merge(paths: Sequence[str], target: str, columns: list[str]) -> None:
    """Write some columns of files (paths below the lake) to one, a row group for each."""
    system, path = lake.filesystem(target)
    lake.make_parents(target)
    folder, name = path.rsplit("/", 1)
    # A name beginning with a dot is invisible to every reader until it is complete.
    temporary = f"{folder}/.{name}"
    with ExitStack() as opened:
        for each in paths:
            with lake.parquet_file(lake.uri(each)) as parquet:
                table = parquet.read(columns=columns)
            if each == paths[0]:
                writer = opened.enter_context(pq.ParquetWriter(temporary, table.schema, filesystem=system))
            writer.write_table(table)
    system.move(temporary, path)
