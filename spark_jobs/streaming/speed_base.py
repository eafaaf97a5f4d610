"""The base of a speed view: what was archived before the generation's stream began, aggregated once.

A new stream has no state and counts the records from a position of the archive on. Everything below that position is in
the base, and the sink emits the sum of base and state. Because the base is computed from the archive, it also holds
what an older generation dropped as late.

It is computed while the archive query runs: Kafka would else remove records that nobody has read. The position is
the archive's when the computation begins; one that takes long goes on with what was archived meanwhile, because Kafka
must still have what follows (include/decisions/034-archiving-does-not-wait-for-a-view.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.intervals.references import taken_contents
from include.ledger.archive import micro_batches
from include.ledger.archive.committed import first_committed_offsets
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange, TopicPartition, ranges_between
from include.pipelines.spec import EVENT_TIMES, AdditiveView, Pipeline
from include.streams.checkpoints import checkpoint_uri, has_started
from include.streams.start import StreamStart
from include.versions import view_version
from spark_jobs.archive.files import within
from spark_jobs.archive.reader import CLOSED_TOPIC_ID, read_archived, read_archived_by_event_time
from spark_jobs.decoding.records import load_references
from spark_jobs.sinks.speed_view import Target
from spark_jobs.spark.log import log_of
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.measures import declared_measures
from spark_jobs.views.stored_base import StoredBase, day_of
from spark_jobs.views.values import key_json

_LONG = 10.0
"""Seconds after which the archive is so far ahead that a part with what it has read meanwhile is added."""

_MOST_PARTS = 6
"""Parts of a base at most: each has only what was archived during the one before, so the last ones are short."""

_POOL = "bases"
"""The scheduler's pool that gets the task slots which the queries leave (`include/spark/pools.xml`)."""

_STOP_SECONDS = 10

Positions = Mapping[TopicPartition, int]


class Bases(threading.Thread):
    """Makes the bases of views one after the other, beside the queries that run."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        lease: writers.Lease,
        start: StreamStart,
        targets: Mapping[str, Sequence[Target]],
    ) -> None:
        super().__init__(name="bases", daemon=True)
        self._spark, self._pipeline, self._lease = spark, pipeline, lease
        self._stream_start, self._targets = start, targets
        self._views = [view for view in pipeline.views if is_due(pipeline, view, start.generation)]
        self._awaited = {view.name for view in self._views}
        self._made: SimpleQueue[tuple[AdditiveView, StoredBase | None]] = SimpleQueue()
        self._failure: Exception | None = None
        # Spark remembers a cancelled group: the next driver in this JVM has another one.
        self._group = f"bases of {pipeline.name}, {lease.token}"

    @property
    def awaited(self) -> frozenset[str]:
        """The views whose bases were not taken yet."""
        return frozenset(self._awaited)

    def kept(self) -> dict[str, StoredBase | None]:
        """Return, by view, the bases that are there; None for a view that begins without one. Raises TidemarkError."""
        views = [view for view in self._pipeline.views if view.name not in self._awaited]
        return {view.name: self._load(view) for view in views}

    def start(self) -> None:
        """Begin, if a base is to be made."""
        if self._awaited:
            super().start()

    def run(self) -> None:
        """Make all bases, or note the error."""
        try:
            context = self._spark.sparkContext
            context.setJobGroup(self._group, "bases of speed views")
            context.setLocalProperty("spark.scheduler.pool", _POOL)
            for view in self._views:
                self._made.put((view, self._load(view)))
        except Exception as error:  # the thread's edge: the driver ends with it
            self._failure = error

    def _load(self, view: AdditiveView) -> StoredBase | None:
        return load_base(self._spark, self._pipeline, view, self._lease, self._stream_start, self._targets[view.name])

    def taken(self) -> Iterator[tuple[AdditiveView, StoredBase | None]]:
        """Yield the bases made since the last look. Raises what one failed with."""
        failure = self._failure
        with suppress(Empty):
            while True:
                view, base = self._made.get_nowait()
                yield view, base
                self._awaited.discard(view.name)
        if failure is not None:
            raise failure

    def end(self) -> bool:
        """Cancel what is being computed; return False if it does not end in time. It does not count."""
        if self.is_alive():
            # Without its JVM nothing is computed.
            with suppress(OSError, Py4JError):
                self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
            self.join(_STOP_SECONDS)
        return not self.is_alive()


def is_due(pipeline: Pipeline, view: AdditiveView, generation: StreamGeneration) -> bool:
    """Return whether a base is to be made before the view begins."""
    if micro_batches.token_of(_query_id(view, generation), generation.version(-1)) is not None:
        return False
    return not has_started(generation, view.name) and (generation.number > 0 or _has_read(pipeline, view))


def load_base(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    lease: writers.Lease,
    start: StreamStart,
    targets: Sequence[Target],
) -> StoredBase | None:
    """Return the view's base in this generation, made at the view's first start in it; None when it began without one.

    Raise TidemarkError when its files are not those that were written: too small sums would replace right ones.

    The base does not count until its row is in the ledger, so after an earlier crash it is made again. Where only the
    view had committed anything, the base is empty: the state below its position is that of an older generation. So it
    is where nothing was committed and a later generation begins: the topic may have values of a ledger that is lost,
    which are to be deleted.
    """
    generation = start.generation
    query_id = _query_id(view, generation)
    token = micro_batches.token_of(query_id, generation.version(-1))
    if token is None:
        if not is_due(pipeline, view, generation):
            return None
        # Before the base is: the next driver may have other code, or another content of a reference.
        start.note_base(view.name)
        token = lease.token
        location = _location(generation, view, token)
        log_of(pipeline.name, view.name).info("computed from the archive")
        _delete_uncounted(generation, view)
        ends = _write(spark, pipeline, view, location)
        crash_point("base_written")
        began = time.monotonic()
        for target in targets:
            whole = declared_measures(pipeline, view, StoredBase(spark, view, location).every())
            target.replace(whole, generation.version(-1))
        crash_point("base_emitted")
        _commit(pipeline, view, lease, query_id, generation, ends, seconds=time.monotonic() - began)
    base = StoredBase(spark, view, location := _location(generation, view, token))
    if damage := base.damage():
        raise TidemarkError(
            f"the base of the speed view {view.name} is gone: {location}: {damage}",
            remedy=f'./tidemark new-generation {pipeline.name} --reason "…"',
            pipeline=pipeline.name,
        )
    return base


def _query_id(view: AdditiveView, generation: StreamGeneration) -> str:
    return f"base-{generation.pipeline}-{view.name}-g{generation.number}"


def _write(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, location: str) -> Positions:
    """Write the base, in parts as long as one takes long, and return the positions below which it has everything."""
    before: Positions | None = None
    for _ in range(_MOST_PARTS):
        began, ends = time.monotonic(), micro_batches.positions(pipeline.name)
        if ends == before:
            break
        StoredBase.write(_aggregate(spark, pipeline, view, _archived(spark, pipeline, before, ends)), location)
        before = ends
        if time.monotonic() - began < _LONG:
            break
    return before or {}


def _archived(spark: SparkSession, pipeline: Pipeline, before: Positions | None, ends: Positions) -> DataFrame:
    """Return the rows that were archived between two positions; without the first, all below the second."""
    ranges = ranges_between(before or {}, ends)
    if before is not None:
        return read_archived(spark, pipeline, ranges)
    rows = read_archived_by_event_time(spark, pipeline, *EVENT_TIMES)
    # Of a topic that was created again since, all is below.
    return rows.where((F.col(CLOSED_TOPIC_ID) != "") | within(ranges))


def _has_read(pipeline: Pipeline, view: AdditiveView) -> bool:
    return bool(micro_batches.positions(pipeline.name) or micro_batches.positions(pipeline.name, view.name))


def _location(generation: StreamGeneration, view: AdditiveView, token: int) -> str:
    # With the fencing token: a driver that lost its lease writes elsewhere.
    return f"{checkpoint_uri(generation, view.name)}.base-{token}"


def _delete_uncounted(generation: StreamGeneration, view: AdditiveView) -> None:
    """Delete what drivers that were killed wrote of the base: a view that makes its first one has none that counts."""
    folder, _, name = checkpoint_uri(generation, view.name).rpartition("/")
    for entry in lake.list_entries(folder, recursive=False):
        if entry.name.startswith(f"{name}.base-"):
            lake.delete(f"{folder}/{entry.name}")


def _aggregate(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline))
    values = declared_measures(pipeline, view, aggregated)
    return values.select(key_json(view).alias("key"), *view.measures, day_of(view))


def _commit(
    pipeline: Pipeline,
    view: AdditiveView,
    lease: writers.Lease,
    query_id: str,
    generation: StreamGeneration,
    ends: Positions,
    *,
    seconds: float,
) -> None:
    """Move the view to where its base ends, as a micro-batch before its first.

    `seconds`: how long ago its first value was written.
    """
    stored = micro_batches.stored_topics(pipeline.name)
    first = first_committed_offsets(pipeline.name)
    ranges = [OffsetRange(tp, first.get(tp, at), at, stored[tp.topic]) for tp, at in sorted(ends.items())]
    version = view_version(pipeline.code, view.name, taken_contents(pipeline))
    batch = BatchCommit(pipeline.name, view.name, query_id, generation.version(-1), ranges, seconds=seconds)
    micro_batches.move_query(lease, replace(batch, decoder_version=version))
