"""Runs a pipeline's queries under its lease until they are stopped, caught up, or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.errors import MessageRefused
from include.kafka.consumer_group import ConsumerGroup
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.archive.positions import topics_that_left
from include.ledger.streams import writers
from include.ledger.streams.flags import FLAGS
from include.offsets import TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from include.processes import user_at_host
from include.streams import generations
from include.streams.checkpoints import checkpoint_uri, contents_of_generation
from include.streams.start import StreamStart, begin, removed_before
from include.streams.written_topics import owner_of
from include.versions.loaded_modules import loaded_code
from spark_jobs.decoding.decoders import prepare_code
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.references.take import has_sources, with_content
from spark_jobs.sinks.landing import LandingSink
from spark_jobs.sinks.outage_notices import OutageNotices
from spark_jobs.sinks.speed_view import SpeedViewSink, targets_of
from spark_jobs.spark.failures import SPARK_FAILURES, translate, unresolved_id
from spark_jobs.spark.kafka_source import read_stream
from spark_jobs.spark.log import log_of
from spark_jobs.streaming.flag_query import FlagQuery
from spark_jobs.streaming.heartbeat import leased
from spark_jobs.streaming.progress import ProgressNotes
from spark_jobs.streaming.queries import Sink, Stop, StreamQueries
from spark_jobs.streaming.restarts import PoisonRestarts, SchemaRestarts, with_losses
from spark_jobs.streaming.row_outputs import LAST, RowOutputs
from spark_jobs.streaming.speed_base import Bases
from spark_jobs.streaming.started_code import StreamVersions, load_code, versions_of
from spark_jobs.views.aggregate import aggregate_stream
from spark_jobs.views.flags import declared


def run_stream(open_session: Callable[[], SparkSession], pipeline: Pipeline, *, until_caught_up: bool) -> int:
    """Run the pipeline's queries. Returns 0 when stopped or caught up.

    Raises AnotherWriter, TopicRecreated, OffsetsLost, ServiceUnreachable, or what a query failed with. The lease is
    taken before Spark starts, so that a second driver ends within a second. References that have a source are read from
    it until one of the generation's views has begun, and do not change from then on.
    """
    stop = Stop()
    # Before the lease, which may be waited for: what is deployed meanwhile is not the code that runs.
    code = load_code(pipeline)
    with leased(pipeline.name) as (lease, heartbeat):
        if not pipeline.source.fail_on_data_loss:
            _accept_losses(pipeline, lease)
        spark = open_session() if has_sources(pipeline) else None
        if spark:
            pipeline = with_content(spark, pipeline, contents_of_generation(pipeline.name))
        versions = versions_of(pipeline, code)
        start = begin(pipeline)
        spark = spark or open_session()
        heartbeat.note_application(spark)
        outputs = RowOutputs(spark, pipeline, lease)
        queries = _Queries(spark, pipeline, lease, start, versions, outputs, until_caught_up=until_caught_up)
        # Modules count as they were first imported, even if a deployment came in between.
        writers.note_code(lease, {**loaded_code(), **code})
        notes = ProgressNotes(pipeline.name, queries.by_name)
        notices = OutageNotices(pipeline)
        notes.start()
        notices.start()
        outputs.start()
        log = log_of(pipeline.name)
        log.info(
            "streaming from %s (generation %s, fencing token %s)", pipeline.source, start.generation.number, lease.token
        )

        def is_asked_to_stop() -> bool:
            return stop.requested or heartbeat.stop_requested()

        try:
            while queries.running() and not is_asked_to_stop():
                queries.wait(1)
            stopped = is_asked_to_stop()
            queries.stop_at_batch_boundary()
            if stopped:
                outputs.end(LAST)
            else:
                stopped = not outputs.end_sent(is_asked_to_stop)
        except BaseException as error:
            queries.stop_now()
            outputs.end(0)
            if isinstance(error, SPARK_FAILURES):
                raise with_losses(pipeline, start.generation, error) from error
            raise
        finally:
            heartbeat.keeps_lease = queries.is_one_left
            notices.end()
            notes.end()
        log.info("%s, %s records committed", "stopped" if stopped else "caught up", queries.committed)
    return 0


class _Queries(StreamQueries):
    """The running queries of a pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        lease: writers.Lease,
        start: StreamStart,
        versions: StreamVersions,
        outputs: RowOutputs,
        *,
        until_caught_up: bool,
    ) -> None:
        super().__init__(spark, pipeline, lease, start.generation, until_caught_up=until_caught_up)
        self._versions = versions
        self._outputs = outputs
        self._group = ConsumerGroup(pipeline.name, owner_of(pipeline.name))
        left = topics_that_left(pipeline.name)
        positions = micro_batches.positions(pipeline.name).items()
        self._show_position({tp: at for tp, at in positions if tp.topic not in left})
        self._searching = threading.Event()
        self._restarts = PoisonRestarts(pipeline.name, self._searching)
        self._schemas = SchemaRestarts(pipeline)
        self._flags = (
            FlagQuery(
                spark, pipeline, lease, start.generation, self._restarts, versions, until_caught_up=until_caught_up
            )
            if pipeline.flags
            else None
        )
        # Before anything is noted: code that cannot decode may be corrected without a new generation.
        prepare_code(pipeline.decoder, spark)
        self._start_of_stream = start
        self._targets = {v.name: targets_of(pipeline, v, lease) for v in pipeline.views}
        self._made = Bases(spark, pipeline, lease, start, self._targets)
        # Views whose base is to be made first begin later.
        self._bases = self._made.kept()
        self._names = [ARCHIVE, *self._bases, *((FLAGS,) if pipeline.flags else ())]
        self._begins = {query: start.note(pipeline, query) for query in self._names}
        # A driver that is killed after its first commit must find its own ledger named there.
        self._show_position(self._begins[ARCHIVE])
        self._queries = [self._start_archive(), *(self._start_beside(name) for name in self._names[1:])]
        self._made.start()

    def running(self) -> bool:
        """Return whether any query still runs. Raises what a query failed with."""
        for number, query in enumerate(self._queries):
            name = self._names[number]
            failed = self._failure(name, query)
            if failed is None:
                continue
            if (schema_id := unresolved_id(failed)) is not None:
                self._start_again_with_schemas(number, schema_id)
                continue
            if self._errors or not number:
                raise self._errors[0] if self._errors else failed
            if self._flags and isinstance(refused := translate(failed), MessageRefused):
                # Of all queries, Spark writes the messages of this one alone, and its error names no topic.
                refused.message += f"; the topic is {declared(self._pipeline).topic}"
                raise refused from failed
            if self._restarts.may_start(name, failed, archive_runs=self._queries[0].isActive):
                self._log(name).info("starts again")
                self._queries[number] = self._start_beside(name)
        if self._flags:
            at = self._names.index(FLAGS)
            self._queries[at] = self._flags.tend(self._queries[at])
        self._begin_views()
        runs = any(query.isActive or query.exception() is not None for query in self._queries)
        return runs or bool(self._made.awaited)

    def by_name(self) -> dict[str, StreamingQuery]:
        """Return the queries that were last started, by their names."""
        return dict(zip(self._names, self._queries, strict=False))

    def _begin_views(self) -> None:
        """Start the views whose bases were made since the last look."""
        if self._until_caught_up and (self._made.is_alive() or any(query.isActive for query in self._queries)):
            return
        if (made := list(self._made.taken())) and self._until_caught_up:
            # All read what has arrived since they ended, as the views do.
            self._queries = [self._start_archive(), *map(self._start_beside, self._names[1:])]
        for view, base in made:
            self._bases[view.name] = base
            self._begins[view.name] = self._start_of_stream.note(self._pipeline, view.name)
            # In this order: another thread reads both.
            self._queries.append(self._start_speed(view))
            self._names.append(view.name)

    def _start_again_with_schemas(self, number: int, schema_id: int) -> None:
        """Restart a query that met a schema id unknown at its planning, once all of its micro-batch are resolved."""
        query = self._names[number]
        if self._schemas.may_start(self._spark, query, checkpoint_uri(self._generation, query), schema_id):
            self._log(query).info("starts again with newly resolved schemas")
            self._queries[number] = self._start_beside(query) if number else self._start_archive()

    def stop_at_batch_boundary(self, patience: float = 60.0) -> None:
        """Let each query finish the micro-batch it is in, then stop it. A base that is being made does not count."""
        self._end_bases()
        if self._flags:
            # Its long batches need not end: the next driver reads again what was read since its last commit, and a flag
            # that is raised twice counts once.
            self._stop(self._queries[self._names.index(FLAGS)])
            self._flags.commit_finished()
        super().stop_at_batch_boundary(patience)

    def stop_now(self) -> None:
        """Stop all queries, and the making of bases."""
        self._end_bases()
        super().stop_now()

    def _end_bases(self) -> None:
        if not self._made.end():
            self._leave("the base of a view", "is being computed")

    def _read(self, query: str) -> DataFrame:
        return read_stream(self._spark, self._pipeline.source, self._begins[query])

    def _start_archive(self) -> StreamingQuery:
        decoded = decode(self._pipeline, self._read(ARCHIVE))

        def sink_of(query_id: str, checkpoint: str) -> Sink:
            options = (self._versions.decoder, self._on_commit, self._searching)
            return LandingSink(self._pipeline, self._lease, query_id, checkpoint, *options).land

        return self._start(decoded.writeStream.outputMode("append"), ARCHIVE, sink_of)

    def _start_beside(self, name: str) -> StreamingQuery:
        """Start a query that runs beside the archive query."""
        if self._flags and name == FLAGS:
            return self._flags.start(self._begins[name])
        return self._start_speed(next(view for view in self._pipeline.views if view.name == name))

    def _start_speed(self, view: AdditiveView) -> StreamingQuery:
        decoded = decode(self._pipeline, self._read(view.name), self._restarts.withheld(view.name))
        rows = archive_rows(self._pipeline, decoded)
        aggregates = aggregate_stream(self._spark, self._pipeline, view, rows)

        def sink_of(query_id: str, checkpoint: str) -> Sink:
            written = (self._pipeline, view, self._lease, self._generation, self._bases[view.name])
            options = (self._versions.views[view.name], self._targets[view.name])
            return SpeedViewSink(*written, query_id, checkpoint, *options).emit

        return self._start(aggregates.writeStream.outputMode(view.mode), view.name, sink_of)

    def _on_commit(self, batch: BatchCommit) -> None:
        records = sum(fates.records for fates in batch.fates.values())
        quarantined = sum(fates.quarantined for fates in batch.fates.values())
        self.committed += records
        self._outputs.wake()
        self._commits.add(f"micro-batch {batch.batch_id} committed: ", records, quarantined, batch.seconds)
        self._show_position({each.topic_partition: each.until_offset for each in batch.ranges})
        for (topic, partition, offset), thrown in batch.diverted.items():
            self._log(ARCHIVE).warning(
                "%s-%s offset %s is quarantined because it throws: %s", topic, partition, offset, thrown
            )

    def _show_position(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the archive's position to the consumer group, for lag monitoring. A failure is only logged."""
        if failed := self._group.commit(positions):
            self._log(ARCHIVE).warning("the position was not committed to the group %s: %s", self._group.name, failed)


def _accept_losses(pipeline: Pipeline, lease: writers.Lease) -> None:
    """Accept and report what Kafka removed before it was read, as the pipeline declares."""
    reason = "declared: fail_on_data_loss=False"
    for each in generations.accept_losses(pipeline, lease, reason=reason, accepted_by=user_at_host()):
        log_of(pipeline.name).warning(
            "%s (%s offsets) was removed before it was archived; accepted, %s", each, len(each), reason
        )
    passed_over = generations.pass_over_removed(pipeline, lease, reason=reason, started_by=user_at_host())
    for query, removed in passed_over.items():
        log_of(pipeline.name, query).warning(
            "%s read it; all of it is archived, and a new generation begins, %s", removed_before(query, removed), reason
        )
