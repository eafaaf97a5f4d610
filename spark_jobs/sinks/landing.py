"""The archive query's sink: one micro-batch to landing files and quarantine, committed in the ledger."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession

from include import kafka, lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.failures import note_failure
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.archive.positions import topics_that_left
from include.ledger.intervals.locks import await_replaced_rows
from include.ledger.streams import writers
from include.offsets import Coordinates, Fate, Fates, OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import append_batch
from spark_jobs.archive.landing_folder import move_quarantined, read_back, reasons_of, records_of, write_landing
from spark_jobs.decoding.poison import find_poison, thrown_by, withhold
from spark_jobs.decoding.records import decode
from spark_jobs.sinks.outages import find_changes
from spark_jobs.sinks.replays import check_replay
from spark_jobs.spark.checkpoint import read_batch
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate
from spark_jobs.spark.kafka_source import read_ranges

IDENTICAL = 3
"""After this many failures of the same kind a micro-batch is searched for a record that throws."""

TRIES = 9
"""Most attempts to write a micro-batch, whatever the errors."""

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
    decoder_version: str
    """Of the code that this driver runs."""
    on_commit: Callable[[BatchCommit], None]
    searching: threading.Event = field(default_factory=threading.Event)
    """Set while the batch is searched for a record that throws."""

    def land(self, decoded: DataFrame, batch_id: int) -> None:
        """Land and commit one micro-batch; a replay of a committed one does nothing (`check_replay`).

        In this order: the exact ranges are read from the write-ahead log; one write, by fate and date, leaves out
        records that throw; the files are read back and counted per topic partition; quarantined records move to the
        quarantine, under a name that has the driver's token; the Delta table's transaction is committed, which a
        replay finds done; the ledger's transaction is committed. Before that, nothing of the micro-batch is part of the
        archive.
        """
        started = time.monotonic()
        planned = read_batch(self.checkpoint, batch_id)
        if micro_batches.is_committed(self.query_id, batch_id):
            committed = micro_batches.committed_ranges(self.query_id, batch_id)
            check_replay(self.pipeline.name, f"micro-batch {batch_id} of {ARCHIVE}", planned.ranges, committed)
            return
        crash_point("batch_planned")
        # Of this driver alone: one that was frozen meanwhile writes under names of its own when it goes on.
        name = f"{self.query_id[:8]}-{batch_id:09d}-{self.lease.token}"
        folder = lake.uri("landing", self.pipeline.name, name)
        diverted = self._write(decoded, batch_id, planned.ranges, folder)
        crash_point("landing_written")
        files, fates = self._read_back(folder, planned.ranges, name)
        topics = self._topics(planned.ranges)
        if self.pipeline.archive.delta:
            self._append_to_delta(decoded.sparkSession, files, batch_id)
        formerly = self.pipeline.archive.formerly
        watched = [report.watched_as(formerly)[0] for report in self.pipeline.watched_reports]
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
            decoder_version=self.decoder_version,
            diverted=diverted,
            reasons=reasons_of(files),
            watched=watched or None,
            changes=find_changes(self.pipeline, files),
        )
        micro_batches.commit(self.lease, batch)
        crash_point("batch_committed")
        self.on_commit(batch)

    def _topics(self, ranges: Sequence[OffsetRange]) -> dict[str, kafka.TopicIdentity]:
        """Return the current topics of the ranges. Raises TopicRecreated, also for a topic that has none of them.

        Another query may have committed a topic that was created after this micro-batch was planned.
        """
        wanted = {r.topic_partition.topic for r in ranges}
        left, stored = topics_that_left(self.pipeline.name), micro_batches.stored_topics(self.pipeline.name)
        known = {topic: topic_id for topic, topic_id in stored.items() if topic not in left}
        topics = kafka.describe_topics(wanted | known.keys())
        for topic, topic_id in known.items():
            kafka.check_same_topic(self.pipeline.name, topics.get(topic), topic, topic_id)
        return {topic: identity for topic, identity in topics.items() if topic in wanted}

    def _append_to_delta(self, spark: SparkSession, files: Sequence[LandingFile], batch_id: int) -> None:
        await_replaced_rows(self.pipeline.name)
        # Delta does not check the lease, so a driver that has lost it must stop here.
        writers.renew(self.lease)
        landed = [file.path for file in files if file.fate == Fate.ARCHIVED]
        append_batch(spark, self.pipeline, landed, self.query_id, batch_id)
        crash_point("delta_committed")

    def _write(
        self, decoded: DataFrame, batch_id: int, ranges: list[OffsetRange], folder: str
    ) -> dict[Coordinates, str]:
        """Write the decoded records. Return those that had to be left out, with the errors that they threw.

        A failed write is tried again; after `IDENTICAL` failures of the same kind, restarts included, the batch is
        searched for the record that throws. Where none is found (an outage, a full disk), none is left out. Raises
        AnalysisException at once, which is of the code.
        """
        for _ in range(TRIES):
            try:
                write_landing(self.pipeline, decoded, folder)
            except AnalysisException:
                # Spark refuses the plan or the schema, whatever the records are: none of them is to blame.
                raise
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
        """Find the records that throw and write the batch with these in quarantine, undecoded.

        Where none throws any more, the batch is written once again: the cause may have passed.
        """

        def decoded(part: Sequence[OffsetRange], withheld: Column | None = None) -> DataFrame:
            return decode(self.pipeline, read_ranges(spark, part), withheld)

        poison = find_poison(
            ranges, lambda part: thrown_by(decoded(part)), lambda part: thrown_by(read_ranges(spark, part))
        )
        try:
            write_landing(self.pipeline, decoded(ranges, withhold(poison)), folder)
        except SPARK_FAILURES as error:
            if poison or translate(error) is not None:
                raise
            raise TidemarkError(
                f"micro-batch {batch_id} ({', '.join(map(str, ranges))}) could not be written, though all its records "
                f"decode: {cause}",
                remedy=f"nothing was committed; check {lake.root()} (free space, permissions) and start again",
                pipeline=self.pipeline.name,
            ) from error
        return poison

    def _read_back(
        self, folder: str, ranges: list[OffsetRange], name: str
    ) -> tuple[list[LandingFile], dict[TopicPartition, Fates]]:
        """Return what the written files really hold: files with rows and event times, fates per topic partition.

        Quarantined records are moved to the quarantine. Raises TidemarkError when there are more records than offsets.
        """
        counts: dict[TopicPartition, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        files = []
        for file, parquet in read_back(self.pipeline, folder):
            for tp, records in records_of(parquet):
                counts[tp][file.fate] += records
            files.append(file)
        fates = {tp: Fates(**by_fate) for tp, by_fate in counts.items()}
        _check_counts(self.pipeline, ranges, fates)
        files = move_quarantined(self.pipeline, files, name, QUARANTINE_COLUMNS)
        crash_point("quarantine_moved")
        return files, fates


def _check_counts(pipeline: Pipeline, ranges: list[OffsetRange], fates: dict[TopicPartition, Fates]) -> None:
    planned = {r.topic_partition: r for r in ranges}
    for tp, counted in fates.items():
        if tp not in planned or counted.records > len(planned[tp]):
            raise TidemarkError(
                f"{counted.records} records were read of {planned.get(tp, tp)}: more than it has offsets",
                remedy="report this; nothing was committed",
                pipeline=pipeline.name,
            )
