"""The archive query's sink: one micro-batch to landing files and quarantine, committed in the ledger."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

from include import delta_tables, kafka, lake
from include.code_version import decoder_version
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger import micro_batches, writers
from include.ledger.batch_failures import note_failure
from include.ledger.micro_batches import ARCHIVE, BatchCommit, Fates, LandedFile
from include.offsets import Coordinates, OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from spark_jobs.decoding.records import ARCHIVED, QUARANTINED, decode, withhold
from spark_jobs.entry import root_cause, translate
from spark_jobs.kafka_source import read_ranges
from spark_jobs.poison import SPARK_FAILURES, find_poison, thrown_by
from spark_jobs.sinks.delta_archive import append_batch
from spark_jobs.write_ahead_log import read_batch

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

        Order: exact ranges from the write-ahead log; one write, partitioned by outcome and date, without
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

    def _append_to_delta(self, spark: SparkSession, files: Sequence[LandedFile], batch_id: int) -> None:
        # Delta knows no lease: a driver that has lost its own gets no further than this.
        writers.renew(self.lease)
        landed = [file.path for file in files if file.outcome == ARCHIVED]
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

    def _count(self, folder: str) -> tuple[list[LandedFile], dict[TopicPartition, Fates]]:
        """What the written files really hold: files with rows and event times, records per topic partition."""
        counts: dict[TopicPartition, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        files = []
        for file, table in read_back(self.pipeline, folder, ["kafka_topic", "kafka_partition", "kafka_element"]):
            firsts = table.filter(pc.equal(table["kafka_element"], 0))
            for group in firsts.group_by(["kafka_topic", "kafka_partition"]).aggregate([([], "count_all")]).to_pylist():
                tp = TopicPartition(group["kafka_topic"], group["kafka_partition"])
                counts[tp][file.outcome] += group["count_all"]
            files.append(file)
        return files, {tp: Fates(**by_outcome) for tp, by_outcome in counts.items()}


def write_landing(decoded: DataFrame, folder: str) -> None:
    """Write decoded records to a folder of the landing, by outcome and date; what lay there is replaced."""
    lake.delete(folder)
    unlike = {f"parquet.enable.dictionary#{path}": "false" for path in _unlike(decoded.schema)}
    decoded.write.options(**unlike).partitionBy("outcome", "date").parquet(folder)


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


def read_back(pipeline: Pipeline, folder: str, columns: list[str]) -> Iterator[tuple[LandedFile, pa.Table]]:
    """What a folder of the landing really holds: each file with its rows and event times, and some columns of it."""
    for found in lake.list_files(folder):
        location = f"{folder}/{found.name}"
        outcome = found.name.split("/", 1)[0].removeprefix("outcome=")
        table = _read(location, columns)
        bounds = lake.column_bounds(lake.footer(location), pipeline.archive.event_time)
        times = bounds and _utc(*bounds)
        yield LandedFile(outcome, _below_lake(location), table.num_rows, found.bytes, times), table


def move_quarantined(
    pipeline: Pipeline, files: Sequence[LandedFile], name: str, columns: list[str]
) -> list[LandedFile]:
    """Rewrite quarantined records with only these columns into `quarantine/<pipeline>/`."""
    kept = [file for file in files if file.outcome != QUARANTINED]
    quarantined = sorted((file for file in files if file.outcome == QUARANTINED), key=lambda file: file.path)
    for number, file in enumerate(quarantined):
        target = lake.uri("quarantine", pipeline.name, f"{name}-{number:04d}.parquet")
        table = _read(lake.uri(file.path), columns)
        _write(target, table)
        lake.delete(lake.uri(file.path))
        size = lake.size(target)
        kept.append(LandedFile(QUARANTINED, _below_lake(target), table.num_rows, size))
    return kept


def _check_counts(pipeline: Pipeline, ranges: list[OffsetRange], fates: dict[TopicPartition, Fates]) -> None:
    planned = {r.topic_partition: r for r in ranges}
    for tp, found in fates.items():
        if tp not in planned or found.records > len(planned[tp]):
            raise TidemarkError(
                f"{found.records} records were read of {planned.get(tp, tp)}: more than it has offsets",
                remedy="report this; nothing was committed",
                pipeline=pipeline.name,
            )


def _below_lake(location: str) -> str:
    return location.removeprefix(lake.root() + "/")


def _utc(low: object, high: object) -> tuple[datetime, datetime]:
    assert isinstance(low, datetime)
    assert isinstance(high, datetime)
    return tuple(t if t.tzinfo else t.replace(tzinfo=UTC) for t in (low, high))  # type: ignore[return-value]


def _read(location: str, columns: list[str]) -> pa.Table:
    system, path = lake.filesystem(location)
    with system.open_input_file(path) as file:
        return pq.ParquetFile(file).read(columns=columns)


def _write(location: str, table: pa.Table) -> None:
    system, path = lake.filesystem(location)
    lake.make_parents(location)
    folder, name = path.rsplit("/", 1)
    # A name beginning with a dot is invisible to every reader until it is complete.
    temporary = f"{folder}/.{name}"
    pq.write_table(table, temporary, filesystem=system)
    system.move(temporary, path)
