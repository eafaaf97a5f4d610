"""A speed view's sink: writes the changed aggregates of a micro-batch to every declared target.

The aggregates are computed once and fanned out: the compacted topic first, then the further sinks in their declared
order, then the ledger. In a generation that began with a base, the sums of base and state are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.crash_points import crash_point
from include.kafka.client import CLIENT_LIMIT
from include.kafka.fenced_producer import FencedProducer
from include.kafka.topics import MAX_MESSAGE_BYTES, batch_taken
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.offsets import TopicIdentity
from include.pipelines.spec import AdditiveView, Console, JdbcTable, KafkaMessages, Pipeline
from include.streams.written_topics import check_compacted_topic
from spark_jobs.sinks.compacted_topic import CompactedTopicTarget
from spark_jobs.sinks.console import ConsoleTarget
from spark_jobs.sinks.jdbc_table import JdbcTableTarget
from spark_jobs.sinks.kafka_messages import KafkaMessagesTarget
from spark_jobs.sinks.key_count import KeyCountTarget
from spark_jobs.sinks.replays import check_replay
from spark_jobs.spark.checkpoint import read_batch
from spark_jobs.spark.frames import in_memory
from spark_jobs.views.measures import declared_measures
from spark_jobs.views.stored_base import DAY, StoredBase, day_of
from spark_jobs.views.values import key_json

_LARGEST = 1_000_000_000
"""The most that Kafka's client takes for `message.max.bytes`."""


class Target(Protocol):
    """A target that holds a speed view's values. Columns of `values`: key (`key_json`) and the measures."""

    def write(self, values: DataFrame, version: int, /) -> None:
        """Write the values of changed keys; again with the same version when a micro-batch is replayed."""

    def replace(self, values: DataFrame, version: int, /) -> None:
        """Replace everything that the target holds of the view with the values."""


def targets_of(pipeline: Pipeline, view: AdditiveView, lease: writers.Lease) -> list[Target]:
    """Return the view's targets: its compacted topic, then its further sinks. Its topics share one producer.

    For a view without a window, a last target counts the keys.
    """

    def check_lease() -> None:
        writers.renew(lease)

    producer = FencedProducer(pipeline.name, view.name, check_lease, _client_limits(view))
    targets: list[Target] = [CompactedTopicTarget(view, producer)]
    for sink in view.sinks:
        match sink:
            case KafkaMessages():
                targets.append(KafkaMessagesTarget(pipeline, view, sink, producer))
            case JdbcTable():
                targets.append(JdbcTableTarget(pipeline, view, check_lease))
            case Console():
                targets.append(ConsoleTarget(pipeline, view, sink))
    if view.is_total:
        # Last, because it reads the topic, which then has the micro-batch.
        targets.append(KeyCountTarget(pipeline, view))
    return targets


def _client_limits(view: AdditiveView) -> dict[str, str]:
    """Return the client's options by which it sends messages as large as any topic of the view takes.

    Messages may never be smaller than without the option: topics limit batches after their compression. Batches of
    several are as large as each topic takes.

    Raises ServiceUnreachable.
    """
    topics = [
        view.speed.topic,
        *(topic for sink in view.sinks if isinstance(sink, KafkaMessages) for topic in sink.topics),
    ]
    configs = [config for config in map(kafka.topic_config, topics) if config]
    if not configs:
        return {}
    largest = max(int(config[MAX_MESSAGE_BYTES]) for config in configs)
    return {
        "message.max.bytes": str(max(CLIENT_LIMIT, min(largest, _LARGEST))),
        "batch.size": str(batch_taken(configs)),
    }


@dataclass
class SpeedViewSink:
    """Writes a speed view's changed keys to all targets, then commits the micro-batch's position in the ledger."""

    pipeline: Pipeline
    view: AdditiveView
    lease: writers.Lease
    generation: StreamGeneration
    base: StoredBase | None
    query_id: str
    checkpoint: str
    view_version: str
    """Of the code that this driver runs."""
    targets: Sequence[Target]
    """The view's targets (`targets_of`), the same for all micro-batches of a driver."""

    def emit(self, aggregates: DataFrame, batch_id: int) -> None:
        """Write one micro-batch to the targets, then to the ledger. A crash in between repeats equal values."""
        started = time.monotonic()
        writers.renew(self.lease)
        version = self.generation.version(batch_id)
        if micro_batches.is_committed(self.query_id, version):
            self._check_replay(version, batch_id)
            # Already emitted, but Spark lost its own commit of the batch and needs its state written.
            aggregates.write.format("noop").mode("overwrite").save()
            return
        with self._values(aggregates) as (values, emitted):
            # The read is over: no target gets values of another topic.
            commit = self._commit_of(batch_id, emitted)
            if emitted:
                crash_point("speed_counted")
                for target in self.targets:
                    target.write(values, version)
                    crash_point("speed_written")
        crash_point("speed_emitted")
        batch = BatchCommit(
            pipeline=self.pipeline.name,
            query=self.view.name,
            query_id=self.query_id,
            batch_id=version,
            rows=emitted,
            seconds=time.monotonic() - started,
            decoder_version=self.view_version,
        )
        commit(batch)
        crash_point("speed_committed")

    def _check_replay(self, version: int, batch_id: int) -> None:
        """Raise UsageError unless the micro-batch is planned with the ranges that it was committed with."""
        committed = micro_batches.committed_ranges(self.query_id, version)
        planned = read_batch(self.checkpoint, batch_id).ranges
        check_replay(self.pipeline.name, f"micro-batch {batch_id} of {self.view.name}", planned, committed)

    def _commit_of(self, batch_id: int, emitted: int) -> Callable[[BatchCommit], None]:
        """Return what commits the micro-batch with the ranges that it read, from the write-ahead log.

        `emitted`: how many values will be written.

        Raises, before anything is written, TopicRecreated when a topic that is read is another one than before, and
        UsageError when the one that the view writes is: what it had is gone, and only keys that change would come.
        """
        planned = read_batch(self.checkpoint, batch_id)
        read = {r.topic_partition.topic for r in planned.ranges}
        described = kafka.describe_topics({*read, self.view.speed.topic})
        topics = {topic: identity for topic, identity in described.items() if topic in read}
        for topic, stored in micro_batches.stored_topics(self.pipeline.name).items():
            if topic in read:
                kafka.check_same_topic(self.pipeline.name, topics.get(topic), topic, stored)
        self._check_own_topic(described)

        def commit(batch: BatchCommit) -> None:
            whole = replace(batch, ranges=planned.ranges, topics=topics, watermark=planned.watermark)
            micro_batches.commit(self.lease, whole)

        return commit

    def _check_own_topic(self, described: Mapping[str, TopicIdentity]) -> None:
        own = described.get(self.view.speed.topic)
        check_compacted_topic(self.pipeline, self.view, self.generation, own)

    @contextmanager
    def _values(self, aggregates: DataFrame) -> Iterator[tuple[DataFrame, int]]:
        """Yield the values to emit, kept in memory, and their number. Columns: key, the measures."""
        keyed: list[Column | str] = [key_json(self.view).alias("key"), *self.view.measures]
        if self.base is None:
            with in_memory(declared_measures(self.pipeline, self.view, aggregates.select(*keyed))) as only:
                yield only, only.count()
            return
        with in_memory(aggregates.select(*keyed, day_of(self.view))) as state:
            [(days,)] = state.agg(F.collect_set(DAY)).collect()
            summed = declared_measures(self.pipeline, self.view, self.base.added_to(state, days))
            with in_memory(summed) as values:
                yield values, values.count()
