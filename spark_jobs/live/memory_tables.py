"""A pipeline's views as tables in memory that follow its topics, and its archive up to the last commit.

They only read: nothing here holds the lease, writes to the ledger, or leaves a checkpoint after the session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include import kafka
from include.errors import TidemarkError
from include.kafka.sources import describe_source, existing_bounds, first_offsets, source_topic_partitions
from include.ledger.archive.committed import first_committed_offsets
from include.offsets import LAST_OFFSET, OffsetRange, TopicPartition
from include.pipelines.spec import EVENT_TIMES, AdditiveView, Pipeline
from spark_jobs.archive.erased import without_erased
from spark_jobs.archive.reader import CLOSED_TOPIC_ID, read_archived_by_event_time
from spark_jobs.decoding.records import archive_rows, decode, load_references
from spark_jobs.spark.kafka_source import read_stream
from spark_jobs.spark.log import log_of
from spark_jobs.views.aggregate import aggregate_view

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""The earliest and the end offset of each topic partition."""

PATIENCE = 300.0
"""Seconds for which no query may get on: a micro-batch of many records takes a while."""

TOLD_EVERY = 5.0
"""Seconds between two lines of progress."""

LOOK_AGAIN = 0.2
"""Seconds between two looks at a query's progress."""


class MemoryTables:
    """Temporary tables of a session: each view under its own name, the archive as `<pipeline>_live`."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._queries: list[StreamingQuery] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return (*(view.name for view in self._pipeline.views), self._archive)

    @property
    def _archive(self) -> str:
        return f"{self._pipeline.table}_live"

    def start(self) -> None:
        """Start a query per view from where the pipeline begins, into a table that holds all of its keys.

        Records that were erased before are left out.
        """
        begin = _beginning(self._pipeline)
        self._queries = [self._start(view, begin) for view in self._pipeline.views]

    def refresh(self) -> None:
        """Bring the tables to what Kafka and the ledger hold now; they may hold some of what arrives meanwhile.

        Raises UsageError without a topic, TidemarkError when no query gets on, and the error of one that failed.
        """
        self._wait_for(existing_bounds(self._pipeline.name, self._pipeline.source))
        rows = read_archived_by_event_time(self._spark, self._pipeline, *EVENT_TIMES)
        rows.drop(CLOSED_TOPIC_ID).createOrReplaceTempView(self._archive)

    def _wait_for(self, bounds: Bounds) -> None:
        """Wait until each query has read up to these ends. While records keep arriving, none is ever idle."""
        changed = told = time.monotonic()
        before = -1
        while left := sum(_unread(query, bounds) for query in self._queries):
            now = time.monotonic()
            if left != before:
                before, changed = left, now
            elif now - changed > PATIENCE:
                raise TidemarkError(
                    f"{left:,} offsets are not read by the tables in memory, and none was for {PATIENCE:.0f} s",
                    remedy="ask again; if that does not help, open the shell again and read its log",
                    pipeline=self._pipeline.name,
                )
            if now - told > TOLD_EVERY:
                log_of(self._pipeline.name).info("the tables in memory still have %s offsets to read", f"{left:,}")
                told = now
            for query in self._queries:
                if not query.isActive:
                    # Raises the error of a query that has failed.
                    query.awaitTermination()
            time.sleep(LOOK_AGAIN)

    def _start(self, view: AdditiveView, begin: Sequence[OffsetRange]) -> StreamingQuery:
        starts = {each.topic_partition: each.from_offset for each in begin}
        records = without_erased(read_stream(self._spark, self._pipeline.source, starts), self._pipeline.name, begin)
        rows = archive_rows(self._pipeline, decode(self._pipeline, records))
        aggregates = aggregate_view(self._pipeline, view, rows, load_references(self._spark, self._pipeline))
        return (
            aggregates.writeStream.format("memory")
            .queryName(view.name)
            .outputMode("complete")
            .option("forceDeleteTempCheckpointLocation", "true")
            .start()
        )


def _beginning(pipeline: Pipeline) -> list[OffsetRange]:
    """Return a range without an end from where each topic partition's archive begins, else from the declared start.

    Only as far as Kafka still has it. The declared start itself may have moved since: `latest` is resolved once. Empty
    before a topic exists.
    """
    topics = describe_source(pipeline.source)
    bounds = kafka.offset_bounds(source_topic_partitions(pipeline.source, topics))
    begin = {**first_offsets(pipeline.source, bounds), **first_committed_offsets(pipeline.name)}
    return [
        OffsetRange(tp, min(max(begin[tp], low), end), LAST_OFFSET, topics[tp.topic].topic_id)
        for tp, (low, end) in bounds.items()
    ]


def _unread(query: StreamingQuery, bounds: Bounds) -> int:
    """Return how many offsets below the ends a query's last micro-batch had not reached."""
    progress = query.lastProgress
    sources = progress["sources"] if progress else []
    reached: dict[str, dict[str, int]] = {}
    for source in sources:
        reached |= json.loads(source["endOffset"] or "null") or {}
    return sum(
        max(0, end - max(first, reached.get(tp.topic, {}).get(str(tp.partition), 0)))
        for tp, (first, end) in bounds.items()
    )
