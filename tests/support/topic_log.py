"""A topic of a test's own whose records carry chosen timestamps, and an archive that is as far as it is told."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from include import kafka, lake
from include.intervals.pinning import pin_interval
from include.ledger.archive import micro_batches
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.intervals import pinned
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import Fates, OffsetRange
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.settings import settings
from include.times import Interval
from tests.conftest import last_hours, wait_for
from tests.support.leases import held_lease

START = last_hours(8)
HOUR = timedelta(hours=1)


def hour(number: int) -> Interval:
    return Interval(START + number * HOUR, START + (number + 1) * HOUR)


def new_log(name: str, topic_partitions: int) -> Log:
    """Return the log of a new pipeline without views, whose topic is created."""
    name = f"{name}_{os.getpid()}"
    source = KafkaTopics(subscribe=(f"{name}-log",))
    log = Log(replace(load_pipeline("nest_cameras"), name=name, source=source, views=(), reports=()))
    log.create(topic_partitions)
    return log


@dataclass
class Log:
    """A pipeline with a topic of its own, and an archive that has read as far as the test says."""

    pipeline: Pipeline
    batches: int = 0
    producer: Producer = field(init=False)
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.producer = kafka.producer()
        # A client must outlive its futures.
        self.admin = AdminClient({"bootstrap.servers": settings().kafka_address()})

    @property
    def topic(self) -> str:
        return self.pipeline.source.subscribe[0]

    def create(self, partitions: int) -> None:
        kafka.create_topic(self.topic, partitions)
        # The controller has done it; the broker that is asked knows it a moment later.
        wait_for("the topic", lambda: self.topic in kafka.describe_topics([self.topic]), 30)

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)
        wait_for("the topic to go", lambda: self.topic not in kafka.describe_topics([self.topic]), 30)

    def send(self, partition: int, *hours: float) -> None:
        """Records whose timestamps are so many hours after the start, in this order."""
        for each in hours:
            at = int((START + each * HOUR).timestamp() * 1000)
            self.producer.produce(self.topic, b"x", partition=partition, timestamp=at)
        assert self.producer.flush(30) == 0

    def archive(
        self,
        files: tuple[LandingFile, ...] = (),
        *,
        query: str = ARCHIVE,
        has_records: bool = False,
        from_latest: bool = False,
    ) -> None:
        """Commit everything that Kafka holds, as one micro-batch of the archive, or of another query.

        As gaps, or as records with rows. `from_latest`: a first one begins at the end.
        """
        identities = kafka.describe_topics([self.topic])
        bounds = kafka.offset_bounds(kafka.topic_partitions_of(identities.values()))
        at = micro_batches.positions(self.pipeline.name, query)
        known = bool(at)
        firsts = {tp: 0 if known else high if from_latest else low for tp, (low, high) in bounds.items()}
        ranges = [OffsetRange(tp, at.get(tp, firsts[tp]), high) for tp, (_, high) in bounds.items()]
        with held_lease(self.pipeline.name) as lease:
            query_id = f"query-{self.pipeline.name}"
            fates = {each.topic_partition: Fates(archived=len(each)) for each in ranges if has_records}
            micro_batches.commit(
                lease, BatchCommit(self.pipeline.name, query, query_id, self.batches, ranges, identities, fates, files)
            )
        # What a stream would have left.
        landing, path = lake.filesystem(lake.uri("landing", self.pipeline.name))
        landing.create_dir(path)
        self.batches += 1

    def pin(self, number: int, *, repin: bool = False) -> dict[int, tuple[int, int]]:
        return by_partition(pin_interval(self.pipeline, hour(number), pinned_by="test", repin=repin))

    def pinned(self) -> list[PinnedInterval]:
        return pinned.pinned_intervals(self.pipeline.name)


def by_partition(pinned: PinnedInterval) -> dict[int, tuple[int, int]]:
    return {r.topic_partition.partition: (r.from_offset, r.until_offset) for r in pinned.ranges}
