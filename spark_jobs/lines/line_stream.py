"""Runs a pipeline's queries over lines of files or a socket, as `kafka_stream.py` does over topics."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from include.errors import UsageError
from include.intervals.lake_of_ledger import check_checkpoints, check_lake
from include.lake.checkpoints import checkpoint_id
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.streams import generations, lines, writers
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.lines import LinesRead
from include.pipelines import as_lines, check_lines_apart
from include.pipelines.spec import AdditiveView, Pipeline
from include.pipelines.spec.lines import LineSource
from include.pipelines.spec.references import check_references
from include.processes import user_at_host
from include.serving.live_rows import check_written_live_tables
from include.streams import fingerprint
from include.streams.checkpoints import checkpoint_uri, contents_of_generation
from include.streams.line_feeds import Feed, feed_of
from include.streams.start import note_unnoted
from include.streams.written_topics import (
    check_compacted_topics,
    check_own_topics,
    create_written_topics,
    note_compacted_topics,
)
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.lines.line_sinks import LineLandingSink, LineViewSink
from spark_jobs.lines.line_source import decode_lines, read_lines
from spark_jobs.references.take import has_sources, with_content
from spark_jobs.sinks.speed_view import targets_of
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.log import log_of
from spark_jobs.spark.schemas import struct_of
from spark_jobs.streaming.heartbeat import Heartbeat, leased
from spark_jobs.streaming.queries import Sink, Stop, StreamQueries
from spark_jobs.streaming.started_code import StreamVersions, load_code, versions_of
from spark_jobs.views.aggregate import aggregate_stream


def run_line_stream(
    open_session: Callable[[], SparkSession], declared: Pipeline, source: LineSource, *, until_caught_up: bool
) -> int:
    """Run the pipeline's queries over the source's lines. Returns 0 when stopped or caught up.

    It has caught up when all files of the folder, or everything until the server closed the connection, were read.
    Raises AnotherWriter, ServiceUnreachable, UsageError, or what a query failed with.
    """
    pipeline = as_lines(declared, source.kind)
    check_lines_apart(pipeline)
    stop = Stop()
    # Before the lease, which may be waited for: what is deployed meanwhile is not the code that runs.
    code = load_code(pipeline)
    with leased(pipeline.name) as (lease, heartbeat):
        early = open_session() if has_sources(pipeline) else None
        if early:
            pipeline = with_content(early, pipeline, contents_of_generation(pipeline.name))
        versions = versions_of(pipeline, code)
        generation = _begin(pipeline, source, lease)
        feed = feed_of(source, lease, until_end=until_caught_up)
        log = log_of(pipeline.name)
        log.info("%s from %s; %s, and no interval over it", declared.name, source, source.guarantee)
        feed.start()
        try:
            while until_caught_up and feed.is_alive() and not (stop.requested or heartbeat.stop_requested()):
                feed.join(0.2)
            feed.check()
            spark = early or open_session()
            heartbeat.note_application(spark)
            queries = _LineQueries(spark, pipeline, lease, generation, versions, until_caught_up=until_caught_up)
            stopped = _run(queries, feed, stop, heartbeat)
        finally:
            feed.end()
        log.info("%s, %s records committed", "stopped" if stopped else "caught up", queries.committed)
    return 0


def _begin(pipeline: Pipeline, source: LineSource, lease: writers.Lease) -> StreamGeneration:
    """Check everything that must hold before a query starts, and return the generation to run."""
    check_lake(pipeline)
    check_references(pipeline.references, pipeline.name)
    check_own_topics(pipeline)
    check_compacted_topics(pipeline)
    create_written_topics(pipeline)
    lines.note_source(lease, pipeline, source.kind, source.guarantee)
    generation = generations.current_or_first(pipeline.name, user_at_host())
    check_checkpoints(generation, (ARCHIVE, *(view.name for view in pipeline.views)))
    for view in pipeline.views:
        # A view's state does not depend on where the lines come from.
        facts = {**fingerprint.view_fingerprint(pipeline, view), "source topics": f"none, {source.kind}"}
        location = checkpoint_uri(generation, view.name)
        has_checkpoint = checkpoint_id(location) is not None
        has_committed = generations.has_committed(generation, view.name)
        # Without either, code may be corrected: it failed before its query was started.
        if view.name in generation.fingerprints and (has_checkpoint or has_committed):
            fingerprint.check(pipeline.name, view.name, generation.fingerprints[view.name], facts)
            note_unnoted(generation, {view.name: facts})
        else:
            generations.note_start(generation, view.name, facts, {})
        if has_committed and not has_checkpoint:
            raise UsageError(
                f"the checkpoint {location} is gone, and with it the state of the speed view {view.name}",
                remedy=f'count all lines again: ./tidemark new-generation {pipeline.name} --reason "…"',
                pipeline=pipeline.name,
            )
    check_written_live_tables(pipeline, generation)
    return note_compacted_topics(pipeline, generation)


def _run(queries: _LineQueries, feed: Feed, stop: Stop, heartbeat: Heartbeat) -> bool:
    """Run until stopped, caught up or failed. Return whether it was stopped."""
    try:
        while queries.running() and not (stop.requested or heartbeat.stop_requested()):
            queries.wait(1)
            feed.check()
        stopped = stop.requested or heartbeat.stop_requested()
        feed.end()
        queries.stop_at_batch_boundary()
    except BaseException:
        queries.stop_now()
        raise
    finally:
        heartbeat.keeps_lease = queries.is_one_left
    return stopped


def with_source(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query that was just started has its source, or has failed; return it.

    Spark gives the Python process of a source ten seconds to connect, and no setting changes that. On a busy machine
    they are too few for the processes of six queries at once.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.02)
    return query


class _LineQueries(StreamQueries):
    """The running queries of a pipeline over lines."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        lease: writers.Lease,
        generation: StreamGeneration,
        versions: StreamVersions,
        *,
        until_caught_up: bool,
    ) -> None:
        super().__init__(spark, pipeline, lease, generation, until_caught_up=until_caught_up)
        self._versions = versions
        self._targets = {view.name: targets_of(pipeline, view, lease) for view in pipeline.views}
        self._queries = [with_source(self._start_archive())]
        self._queries += [with_source(self._start_view(view)) for view in pipeline.views]

    def running(self) -> bool:
        """Return whether any query still runs. Raises what a query failed with."""
        for query in self._queries:
            if failed := self._final_failure(query):
                raise self._errors[0] if self._errors else failed
        return any(query.isActive for query in self._queries)

    def _final_failure(self, query: StreamingQuery) -> Exception | None:
        """Return the error that ended a query: no line is withheld from a view."""
        names = (ARCHIVE, *(view.name for view in self._pipeline.views))
        return self._failure(names[self._queries.index(query)], query)

    def _start_archive(self) -> StreamingQuery:
        # In a new generation the archive goes on from its position; an existing checkpoint ignores `since`.
        since = lines.position(self._pipeline.name, ARCHIVE)
        decoded = decode_lines(self._pipeline, read_lines(self._spark, self._pipeline, since))

        def sink_of(query_id: str, checkpoint: str) -> Sink:
            options = (self._versions.decoder, since, self._on_commit)
            return LineLandingSink(self._pipeline, self._lease, query_id, checkpoint, *options).land

        return self._start(decoded.writeStream.outputMode("append"), ARCHIVE, sink_of)

    def _start_view(self, view: AdditiveView) -> StreamingQuery:
        """Start a view, in each generation at the first line: all lines are still stored."""
        if self._generation.number and checkpoint_id(checkpoint_uri(self._generation, view.name)) is None:
            self._clear(view)
        rows = archive_rows(self._pipeline, decode(self._pipeline, read_lines(self._spark, self._pipeline, since=0)))
        aggregates = aggregate_stream(self._spark, self._pipeline, view, rows)

        def sink_of(query_id: str, checkpoint: str) -> Sink:
            written = (self._pipeline, view, self._lease, self._generation, None)
            options = (self._versions.views[view.name], self._targets[view.name])
            return LineViewSink(*written, query_id, checkpoint, *options).emit

        return self._start(aggregates.writeStream.outputMode(view.mode), view.name, sink_of)

    def _clear(self, view: AdditiveView) -> None:
        """Empty the view's targets: keys of an older generation would stay there."""
        measures = [struct_of(view.columns)[name] for name in view.measures]
        nothing = empty_frame(self._spark, StructType([StructField("key", StringType()), *measures]))
        for target in self._targets[view.name]:
            target.replace(nothing, self._generation.version(-1))

    def _on_commit(self, batch: BatchCommit, read: LinesRead) -> None:
        quarantined = sum(fates.quarantined for fates in read.fates.values())
        records = sum(fates.records for fates in read.fates.values())
        self.committed += records
        about = f"micro-batch {batch.batch_id} committed, lines of {len(read.fates)} sources: "
        self._commits.add(about, records, quarantined, batch.seconds)
