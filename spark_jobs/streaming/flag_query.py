"""The query that raises flags: Kafka to Kafka in real time, under limits that change while the stream runs.

Limits are literals of the query. New limits, learned from newly registered revisions, come into force between two
commits: the query is stopped and started with them, while the other queries go on. Before the first flag is raised
under them, the ledger records from which offsets on they are in force. Records after the last commit are then read
again: they may have flags of both versions, of which the later one counts.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from include import kafka, lake
from include.crash_points import crash_point
from include.errors import ReconciliationFailed, ServiceUnreachable
from include.kafka.sources import describe_source, source_topic_partitions
from include.lake.checkpoints import checkpoint_id, newest_commit
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.archive.positions import topics_that_left
from include.ledger.erasures.coordinates import erased_within
from include.ledger.erasures.unfinished import unfinished
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import writers
from include.ledger.streams.flags import FLAGS, RevisionKey
from include.ledger.streams.generations import StreamGeneration
from include.offsets import LAST_OFFSET, OffsetRange, TopicPartition, ranges_between
from include.pipelines.spec import Limit, Pipeline
from include.streams.checkpoints import checkpoint_uri, has_started
from include.times import in_words, parse_duration
from include.waiting import wait_for
from spark_jobs.archive.files import any_of
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.spark.checkpoint import ends_of, read_batch
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate
from spark_jobs.spark.kafka_source import read_stream, write_stream
from spark_jobs.spark.log import log_of
from spark_jobs.streaming.learned_limits import learned, storable
from spark_jobs.streaming.restarts import PoisonRestarts
from spark_jobs.streaming.started_code import StreamVersions
from spark_jobs.views.flags import bounded_flags, declared

_LOOK_EVERY = 2.0
"""How often the driver asks the ledger for newly registered revisions, s."""

_AGAIN_AFTER = 600.0
"""After which time limits are learned from the same revisions again, s, when these were not to blame for a failure."""

_REGISTERING = 30.0
"""Time that a cluster's executors get to register, s; with fewer task slots, flags are raised in micro-batches."""

_OTHER_QUERIES = 2
"""Task slots that the stream's other queries need in addition to the real-time query's."""


def task_slots(pipeline: Pipeline) -> int:
    """Return how many task slots the stream needs for flags in real time, 0 without any. Raises ServiceUnreachable."""
    if not pipeline.flags:
        return 0
    source, topics = pipeline.source, describe_source(pipeline.source)
    # A topic that is missing gets as many as declared when the stream creates it; so may the first one of a pattern.
    missing = 1 if source.pattern and not topics else len(set(source.subscribe) - topics.keys())
    existing = source_topic_partitions(source, topics)
    return len(existing) + source.topic_partitions * missing + _OTHER_QUERIES


@dataclass
class FlagQuery:
    """Starts the query, commits its position in the ledger, and gives it new limits."""

    spark: SparkSession
    pipeline: Pipeline
    lease: writers.Lease
    generation: StreamGeneration
    restarts: PoisonRestarts
    versions: StreamVersions
    until_caught_up: bool = field(kw_only=True)
    _limits: list[Limit] = field(default_factory=list)
    _version: int = 0
    _learned: list[RevisionKey] | None = None
    _again: float = math.inf
    """When limits are learned again although the revisions have not changed."""
    _running: int = 0
    """The version that the running query uses."""
    _run: int = 0
    _starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    _began: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the generation began."""
    _looked: float = 0.0
    _has_waited: bool = False
    """Whether the executors of this driver had their time to register."""

    def __post_init__(self) -> None:
        self._began = self.generation.began_at(FLAGS)

    @property
    def _log(self) -> logging.LoggerAdapter[logging.Logger]:
        return log_of(self.pipeline.name, FLAGS)

    def start(self, begins: Mapping[TopicPartition, int]) -> StreamingQuery:
        """Start the query with the current limits, at `begins` when there is no checkpoint to continue from."""
        # What a driver that was killed could not commit is of its run.
        self._run = self._run or flag_ledger.last_run(self.pipeline.name)
        self.commit_finished()
        self._learn()
        if has_started(self.generation, FLAGS):
            begins = {}
        identities = describe_source(self.pipeline.source)
        every = dict.fromkeys(source_topic_partitions(self.pipeline.source, identities), 0)
        ids = {topic: identity.topic_id for topic, identity in identities.items()}
        code = self.versions.rules
        if begins:
            self._move(begins, ids, code)
            self._began = begins
        # A topic partition that has appeared since then is read from its beginning.
        positions = micro_batches.positions(self.pipeline.name, FLAGS)
        self._starts = {**every, **self._began, **{tp: at for tp, at in positions.items() if tp.topic in ids}}
        written = kafka.describe_topics([topic := declared(self.pipeline).topic]).get(topic)
        written_id = written.topic_id if written else None
        self._run = flag_ledger.note_run(self.lease, self._version, code, self._starts, ids, written_id)
        self._running = self._version
        crash_point("flag_run_noted")
        trigger = self._trigger(len(every))
        records = read_stream(self.spark, self.pipeline.source, begins, in_real_time="realTime" in trigger)
        rows = archive_rows(self.pipeline, decode(self.pipeline, records, self.restarts.withheld(FLAGS)))
        rows = rows.where(~self._is_erased(ids))
        raised = bounded_flags(self.pipeline, rows, self._limits, self._version)
        return (
            write_stream(raised, declared(self.pipeline).topic)
            .queryName(f"{self.pipeline.name}.{FLAGS}")
            .option("checkpointLocation", checkpoint_uri(self.generation, FLAGS))
            .outputMode("update")
            .trigger(**trigger)
            .start()
        )

    def tend(self, query: StreamingQuery) -> StreamingQuery:
        """Commit what the query has finished. Return the query to run on: a new one when there are new limits."""
        finished = self.commit_finished()
        if self.until_caught_up or not query.isActive:
            return query
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            self._learn()
        # Restart only right after a commit, so that few records are read twice.
        if self._version == self._running or not finished:
            return query
        began = time.monotonic()
        query.stop()
        again = self.start({})
        self._log.info("limits version %s is in force, changed in %.2f s", self._version, time.monotonic() - began)
        return again

    def commit_finished(self) -> int:
        """Commit in the ledger the batches that Spark's checkpoint has committed since. Return their number.

        Batches of a driver that was killed in between are committed by the next driver before it starts.
        """
        location = checkpoint_uri(self.generation, FLAGS)
        if (query_id := checkpoint_id(location)) is None:
            return 0
        last = micro_batches.last_batch(self.pipeline.name, FLAGS)
        following = last.batch_id + 1 if last is not None and last.query_id == query_id else 0
        batch, commits = following, f"{location}/commits"
        while lake.exists(f"{commits}/{batch}") and (not batch or lake.exists(f"{commits}/{batch - 1}")):
            self._commit(query_id, batch, read_batch(location, batch).ranges, _lasted(location, batch))
            batch += 1
        # Spark keeps the last 100: those before are gone when the driver was busy for longer, as with limits to learn.
        may_be_gone = batch == following and not lake.exists(f"{commits}/{batch - 1}")
        if may_be_gone and (newest := newest_commit(location)) >= batch:
            positions = micro_batches.positions(self.pipeline.name, FLAGS)
            self._commit(query_id, newest, ranges_between(positions, ends_of(location, newest)))
            return 1
        return batch - following

    def _commit(self, query_id: str, batch_id: int, ranges: Sequence[OffsetRange], seconds: float = 0.0) -> None:
        topics = kafka.describe_topics(r.topic_partition.topic for r in ranges)
        added = {r.topic_partition for r in ranges} - self._starts.keys() if self._run else set()
        # A topic that is gone is refused by the commit.
        for tp in (each for each in added if each.topic in topics):
            flag_ledger.note_added(self._run, topics[tp.topic].topic_id, tp.partition)
        batch = BatchCommit(self.pipeline.name, FLAGS, query_id, batch_id, ranges, topics, seconds=seconds)
        micro_batches.commit(self.lease, replace(batch, decoder_version=self.versions.decoder))

    def _is_erased(self, topic_ids: Mapping[str, str]) -> Column:
        """Return whether a row's record was erased after the archive query, which may be ahead, had read it."""
        rest = [OffsetRange(tp, at, LAST_OFFSET, topic_ids[tp.topic]) for tp, at in self._starts.items()]
        by_log: dict[tuple[str, int], list[int]] = defaultdict(list)
        for topic, partition, offset in erased_within(self.pipeline.name, rest):
            by_log[topic, partition].append(offset)
        conditions = [
            (F.col("kafka_topic") == topic) & (F.col("kafka_partition") == partition) & F.col("kafka_offset").isin(each)
            for (topic, partition), each in sorted(by_log.items())
        ]
        return any_of(conditions)

    def _move(self, begins: Mapping[TopicPartition, int], ids: Mapping[str, str], code: str) -> None:
        """Move the ledger's position to the beginning of a new checkpoint, and note what is skipped.

        That of a topic which left stays: its flags go on there if it comes back.
        """
        before = micro_batches.positions(self.pipeline.name, FLAGS)
        left, stored = topics_that_left(self.pipeline.name), micro_batches.stored_topics(self.pipeline.name)
        kept = {tp: at for tp, at in before.items() if tp.topic in left and tp not in begins}
        if before == {**kept, **begins}:
            return
        passed = {tp: at for tp, at in before.items() if begins.get(tp, 0) > at}
        passed = {tp: at for tp, at in passed.items() if flag_ledger.has_read(self.pipeline.name, ids[tp.topic])}
        if passed:
            flag_ledger.note_run(self.lease, None, code, passed, ids)
        ranges = [OffsetRange(tp, passed.get(tp, at), at, ids[tp.topic]) for tp, at in sorted(begins.items())]
        ranges += [OffsetRange(tp, at, at, stored[tp.topic]) for tp, at in sorted(kept.items())]
        # The next driver may begin elsewhere: no checkpoint was made, and Kafka has removed offsets since.
        name = f"{FLAGS}-{self.pipeline.name}-g{self.generation.number}-{self.lease.token}"
        micro_batches.move_query(self.lease, BatchCommit(self.pipeline.name, FLAGS, name, -1, ranges))

    def _learn(self) -> None:
        """Learn limits from the registered revisions, unless these have not changed."""
        self._looked = time.monotonic()
        if unfinished(self.pipeline.name):
            # Until their intervals are built again, registered revisions name persons who are being erased; the last
            # limits do not.
            self._keep_last()
            return
        views = [v for v in self.pipeline.views if v.name in declared(self.pipeline).learned_from]
        over = parse_duration(declared(self.pipeline).learned_over)
        tables = [self.pipeline.view_table(view) for view in views]
        is_known = flag_ledger.registered_keys(self.pipeline.name, tables, over) == self._learned
        if is_known and self._looked < self._again:
            return
        revisions = flag_ledger.registered_within(self.pipeline.name, tables, over)
        self._learned, self._again = [RevisionKey(r.table, r.partition, r.revision) for r in revisions], math.inf
        try:
            limits = learned(self.spark, self.pipeline, views, revisions) if revisions else []
        except SPARK_FAILURES as error:
            # Old limits are better than no flags: a damaged file need not end the stream.
            self._log.warning("no limits could be learned, the last ones stay in force: %s", root_cause(error))
            if isinstance(meaning := translate(error), ServiceUnreachable):
                # Nothing was learned, so the same revisions are read again at the next look.
                self._learned = None
            elif not isinstance(meaning or error, ReconciliationFailed | AnalysisException):
                self._again = self._looked + _AGAIN_AFTER
            self._keep_last()
            return
        self._limits = storable(self.pipeline, limits)
        self._version = flag_ledger.note_limits(self.lease, revisions, self._limits)

    def _keep_last(self) -> None:
        """Let the last limits be in force. Before the first there are none, which a version says, too."""
        version, self._limits = flag_ledger.last_limits(self.pipeline.name)
        self._version = version or flag_ledger.note_limits(self.lease, [], [])

    def _trigger(self, topic_partitions: int) -> dict[str, Any]:
        if self.until_caught_up:
            return {"availableNow": True}
        needed = topic_partitions + _OTHER_QUERIES
        slots = self._slots(needed)
        if slots < needed:
            self._log.warning(
                "flags are raised in micro-batches: Spark has %s task slots, in real time %s are needed for %s topic "
                "partitions",
                *(slots, needed, topic_partitions),
            )
            return {"processingTime": "0 seconds"}
        return {"realTime": in_words(declared(self.pipeline).commit_every)}

    def _slots(self, needed: int) -> int:
        """Return how many task slots Spark has; the first time, wait for a cluster's executors if these are too few."""
        context = self.spark.sparkContext
        is_local = str(context.master).partition("[")[0] == "local"
        seconds = 0 if is_local or self._has_waited else _REGISTERING
        self._has_waited = True
        return wait_for(
            lambda: int(context.defaultParallelism), lambda slots: slots >= needed, seconds=seconds, every=0.5
        )


def _lasted(checkpoint: str, batch_id: int) -> float:
    """Return how long ago, in seconds, the batch before ended, where this one began; 0.0 where that is not known."""
    before = f"{checkpoint}/commits/{batch_id - 1}"
    if not lake.exists(before):
        return 0.0
    _, ended = lake.size_and_mtime(before)
    return max(0.0, (datetime.now(UTC) - ended).total_seconds())
