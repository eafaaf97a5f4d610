"""An interval of bids, and their flags as the rules give them: what `reconcile_flags` compares."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include import kafka
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.intervals import attempts
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import writers
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Limit, Pipeline
from include.reconciliation import Reconciliation
from include.streams.start import begin
from include.versions import rules_version
from tests.conftest import Home, settings_of
from tests.support import attempts as made
from tests.support.leases import held_lease

NAME = "auction_bids"
FLAGS = "auction-flags"
PERSON = "Zq7 O'Neil é"
TP = TopicPartition(made.TOPIC, 0)
COLUMNS = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, bid_id STRING, auction_id STRING, category STRING, "
    "seller STRING, bidder STRING, amount DECIMAL(9, 2), currency STRING"
)
LIMITS = [
    Limit("burst", PERSON),
    Limit("far_above", '["toys","EUR"]', "50.00"),
    Limit("shill_pair", json.dumps(["Bert", PERSON], ensure_ascii=False, separators=(",", ":"))),
]
BIDS = [
    # bidder, seller, whether the amount is far above the usual
    (PERSON, "Sam", False),
    ("Bert", PERSON, False),
    ("Carl", "Carl", False),
    ("Dora", "Sam", False),
    ("Bert", PERSON, True),
]


@dataclass
class Raised:
    """An interval of bids, and the stream that raises their flags."""

    run: Any
    lease: writers.Lease
    version: int

    def frame(self, bids: Sequence[tuple[str, str, bool]] = tuple(BIDS), first: int = 0) -> Any:
        """These bids as archive rows from an offset on."""
        from spark_jobs.spark.frames import frame_of

        rows = [
            (
                made.TOPIC,
                0,
                first + n,
                f"b{first + n}",
                "a",
                "toys",
                seller,
                bidder,
                "70.00" if is_far else "20.00",
                "EUR",
            )
            for n, (bidder, seller, is_far) in enumerate(bids)
        ]
        texts = frame_of(self.run.spark, rows, COLUMNS.replace("DECIMAL(9, 2)", "STRING"))
        return texts.withColumn("amount", texts["amount"].cast("DECIMAL(9, 2)"))

    def reconcile(self, rows: Any) -> Reconciliation:
        from spark_jobs.reconciliation.flags import reconcile_flags

        return reconcile_flags(self.run, rows)

    def flags(self) -> list[tuple[str, str]]:
        """Keys and values of the flags that the rules give the bids of `frame`."""
        from spark_jobs.views.flags import flags

        rows = flags(self.run.pipeline, self.frame(), LIMITS, self.version).collect()
        return sorted((each["key"], each["value"]) for each in rows)

    def begin(self, start: int) -> None:
        """Note that the flags' query begins at an offset, and writes to the topic that there is."""
        ids, flags_id = {made.TOPIC: "id"}, kafka.describe_topics([FLAGS])[FLAGS].topic_id
        flag_ledger.note_run(self.lease, self.version, rules_version(NAME), {TP: start}, ids, flags_id)

    def commit(self, batch: int, start: int, end: int) -> None:
        """Commit offsets of the flags' query."""
        topics = {made.TOPIC: TopicIdentity(made.TOPIC, "id", 1)}
        ranges = [OffsetRange(TP, start, end, "id")]
        micro_batches.commit(self.lease, BatchCommit(NAME, "flags", "q", batch, ranges, topics))

    def produce(self, *messages: tuple[str, str], at: datetime | None = None) -> None:
        # Where the stream's producer puts a key.
        producer = kafka.producer(partitioner="murmur2_random")
        for key, value in messages:
            producer.produce(FLAGS, value.encode(), key.encode(), timestamp=int(at.timestamp() * 1000) if at else 0)
        assert producer.flush(30) == 0


@contextmanager
def raising(home: Home, spark: Any, *, topic_partitions: int = 1) -> Iterator[Raised]:
    """The interval, pinned, and a stream that holds the lease and has read nothing; its flags' topic is empty."""
    from spark_jobs.reconciliation.interval_run import IntervalRun

    # Nothing renews the lease here.
    with settings_of(home, TIDEMARK_LEASE_SECONDS="1200"), held_lease(NAME) as lease:
        attempt = made.begin_attempt(NAME, topic_partitions=1)
        version = flag_ledger.note_limits(lease, [], LIMITS)
        kafka.create_topic(FLAGS, topic_partitions)
        found = Raised(IntervalRun(spark, load_pipeline(NAME), attempts.load_attempt(attempt)), lease, version)
        found.begin(0)
        yield found


def raise_flags(spark: Any, pipeline: Pipeline) -> dict[TopicPartition, int]:
    """Run the flags' query until it has caught up, and return where it began: nothing where it continued."""
    from spark_jobs.streaming.flag_query import FlagQuery
    from spark_jobs.streaming.restarts import PoisonRestarts
    from spark_jobs.streaming.started_code import load_code, versions_of

    with held_lease(pipeline.name) as lease:
        start = begin(pipeline)
        begins = start.note(pipeline, flag_ledger.FLAGS)
        restarts = PoisonRestarts(pipeline.name, threading.Event())
        versions = versions_of(pipeline, load_code(pipeline))
        flags = FlagQuery(spark, pipeline, lease, start.generation, restarts, versions, until_caught_up=True)
        query = flags.start(begins)
        query.awaitTermination()
        flags.commit_finished()
    return begins
