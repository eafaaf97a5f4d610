"""The sinks of a stream of lines: landing and speed views as for Kafka, committed without offsets."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from include import kafka, lake
from include.crash_points import crash_point
from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.streams import lines, writers
from include.ledger.streams.lines import LinesRead
from include.offsets import Fates
from include.pipelines.spec import Pipeline
from include.streams.line_feeds import check_unchanged
from spark_jobs.archive.landing_folder import move_quarantined, read_back, reasons_of, write_landing
from spark_jobs.sinks.replays import check_replay
from spark_jobs.sinks.speed_view import SpeedViewSink
from spark_jobs.spark.checkpoint import read_line_batch

QUARANTINE_COLUMNS = ["source_name", "source_line", "source_time", "value", "reason", "detail"]


@dataclass
class LineLandingSink:
    """Lands the decoded lines of micro-batches (`spark_jobs/lines/line_source.py`) and commits them."""

    pipeline: Pipeline
    lease: writers.Lease
    query_id: str
    checkpoint: str
    decoder_version: str
    """Of the code that this driver runs."""
    since: int
    """The query's first micro-batch begins after this file."""
    on_commit: Callable[[BatchCommit, LinesRead], None]

    def land(self, decoded: DataFrame, batch_id: int) -> None:
        """Land and commit one micro-batch, in the order of `LandingSink.land`; a committed one is skipped.

        A line that makes decoding throw stops the stream.
        """
        started = time.monotonic()
        if micro_batches.is_committed(self.query_id, batch_id):
            committed = lines.committed_span(self.query_id, batch_id)
            _check_replay(self.pipeline, ARCHIVE, batch_id, self.checkpoint, committed)
            return
        planned = read_line_batch(self.checkpoint, batch_id, self.since)
        crash_point("batch_planned")
        noted = lines.files_between(self.pipeline.name, planned.after_file, planned.until_file)
        for file in noted:
            check_unchanged(file, self.pipeline.name)
        # Of this driver alone: one that was frozen meanwhile writes under names of its own when it goes on.
        name = f"{self.query_id[:8]}-{batch_id:09d}-{self.lease.token}"
        folder = lake.uri("landing", self.pipeline.name, name)
        write_landing(self.pipeline, decoded, folder)
        crash_point("landing_written")
        # If a connection has several files, the first line of the first one: earlier lines are not of this batch.
        first_lines = {file.source_name: file.first_line for file in reversed(noted)}
        files, fates = self._count(folder, first_lines)
        read = LinesRead(planned.after_file, planned.until_file, first_lines, fates)
        files = move_quarantined(self.pipeline, files, name, QUARANTINE_COLUMNS)
        crash_point("quarantine_moved")
        batch = BatchCommit(
            pipeline=self.pipeline.name,
            query=ARCHIVE,
            query_id=self.query_id,
            batch_id=batch_id,
            files=files,
            rows=sum(file.rows for file in files),
            seconds=time.monotonic() - started,
            decoder_version=self.decoder_version,
            reasons=reasons_of(files),
        )
        lines.commit(self.lease, batch, read)
        crash_point("batch_committed")
        self.on_commit(batch, read)

    def _count(self, folder: str, first_lines: Mapping[str, int]) -> tuple[list[LandingFile], dict[str, Fates]]:
        """Return what the written files really hold. Raises TidemarkError unless each line has one fate."""
        counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        bounds: dict[str, tuple[int, int]] = {}
        files = []
        for file, parquet in read_back(self.pipeline, folder):
            table = parquet.read(columns=["source_name", "source_line", "source_element"])
            firsts = table.filter(pc.equal(table["source_element"], 0))
            wanted = [("source_line", "min"), ("source_line", "max"), ([], "count_all")]
            for group in firsts.group_by("source_name").aggregate(wanted).to_pylist():
                source = group["source_name"]
                counts[source][file.fate] += group["count_all"]
                low, high = bounds.get(source, (group["source_line_min"], group["source_line_max"]))
                bounds[source] = min(low, group["source_line_min"]), max(high, group["source_line_max"])
            files.append(file)
        fates = {source: Fates(**by_fate) for source, by_fate in counts.items()}
        for source, (low, high) in bounds.items():
            if low != first_lines.get(source) or fates[source].records != high - low + 1:
                raise TidemarkError(
                    f"{fates[source].records} lines were read of {source}, lines {low} to {high}",
                    remedy="report this; nothing was committed",
                    pipeline=self.pipeline.name,
                )
        return files, fates


def _check_replay(pipeline: Pipeline, query: str, batch_id: int, checkpoint: str, committed: tuple[int, int]) -> None:
    # The first micro-batch began where the ledger says: the archive's position is beyond it by now.
    planned = read_line_batch(checkpoint, batch_id, since=committed[0])
    spans = [
        [f"files after {after} up to {until}"] for after, until in ((planned.after_file, planned.until_file), committed)
    ]
    check_replay(pipeline.name, f"micro-batch {batch_id} of {query}", *spans)


@dataclass
class LineViewSink(SpeedViewSink):
    """Writes a speed view's changed keys to all targets, then commits how far the view has read the lines."""

    def _check_replay(self, version: int, batch_id: int) -> None:
        committed = lines.committed_span(self.query_id, version)
        _check_replay(self.pipeline, self.view.name, batch_id, self.checkpoint, committed)

    def _commit_of(self, batch_id: int, emitted: int) -> Callable[[BatchCommit], None]:
        planned = read_line_batch(self.checkpoint, batch_id, since=0)
        read = LinesRead(planned.after_file, planned.until_file)
        if emitted:
            # The lines of a socket that come while no driver runs are lost. The producer waits longer for the brokers,
            # and the next micro-batch asks again.
            with suppress(ServiceUnreachable):
                self._check_own_topic(kafka.describe_topics([self.view.speed.topic]))
        return lambda batch: lines.commit(self.lease, replace(batch, watermark=planned.watermark), read)
