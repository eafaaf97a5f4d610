"""Flags after an erasure: those of erased records, and of limits that named the person, are explained, no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from include import kafka
from include.erasure.keys import Keys, hashes_of
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts
from include.ledger.quarantine import RecordKey
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import writers
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Limit
from include.reconciliation import Reconciliation
from include.topics import TopicIdentity
from include.versions import rules_version
from spark_jobs.reconciliation.flags import reconcile_flags
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.flags import flags
from tests.conftest import Home, settings_of
from tests.support import attempts as made

pytestmark = [pytest.mark.spark, pytest.mark.services]

NAME = "auction_bids"
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
    """An interval of bids whose flags are in the topic."""

    run: IntervalRun
    lease: writers.Lease
    version: int

    def frame(self, bids: Sequence[tuple[str, str, bool]] = tuple(BIDS), first: int = 0) -> Any:
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
        return reconcile_flags(self.run, rows)

    def produce(self, *messages: tuple[str, str]) -> None:
        producer = kafka.producer()
        for key, value in messages:
            producer.produce("auction-flags", value.encode(), key.encode())
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def raised(home: Home, spark: Any) -> Iterator[Raised]:
    # Nothing renews the lease here.
    with settings_of(home, TIDEMARK_LEASE_SECONDS="1200"):
        lease = writers.acquire(NAME)
        attempt = made.begin_attempt(NAME, topic_partitions=1)
        version = flag_ledger.note_limits(lease, [], LIMITS)
        flag_ledger.note_run(lease, version, rules_version(NAME), {TP: 0}, {made.TOPIC: "id"})
        topics = {made.TOPIC: TopicIdentity(made.TOPIC, "id", 1)}
        micro_batches.commit(lease, BatchCommit(NAME, "flags", "q", 0, [OffsetRange(TP, 0, 100, "id")], topics))
        kafka.create_topic("auction-flags", 1)
        found = Raised(IntervalRun(spark, load_pipeline(NAME), attempts.load_attempt(attempt)), lease, version)
        messages = flags(found.run.pipeline, found.frame(), LIMITS, version).collect()
        found.produce(*((each["key"], each["value"]) for each in messages))
        yield found
        writers.release(lease)


@pytest.fixture(scope="module")
def erased(raised: Raised) -> int:
    """The number of the person's erasure, whose one bid is the first."""
    assert raised.reconcile(raised.frame()).counts.matched == 4
    request = Request(NAME, ["bidder"], "asked", "me@here", "00" * 16, hashes_of([PERSON], "00" * 16), False)
    bid = RecordKey(made.TOPIC, "id", 0, 0)
    return intent.begin(raised.lease, request, Found({bid}, set(), set(), 1), Keys([PERSON]))


def test_flags_are_explained_when_their_record_or_limit_was_erased(raised: Raised, erased: int) -> None:
    assert flag_ledger.limits_of(NAME, [raised.version])[raised.version] == [LIMITS[1]]
    assert flag_ledger.erased_rules(NAME) == {raised.version: ["burst", "shill_pair"]}
    found = raised.reconcile(raised.frame(BIDS[1:], first=1))
    assert (found.counts.matched, found.counts.unexplained) == (1, 0)
    places = sorted((each.cls.value, each.where) for each in found.differences)
    assert places == [("erased", f"{TP} offset {offset}") for offset in (0, 1, 4, 4)]
    assert PERSON not in str(found.differences)


def test_invented_and_missing_flags_stay_unexplained_when_limits_of_their_version_were_erased(
    raised: Raised, erased: int
) -> None:
    place = {"kafka_offset": 3, "kafka_partition": 0, "kafka_topic": made.TOPIC}
    value = {**place, "limits_version": raised.version, "rules": [{"rule": "far_above", "above": "50.00"}]}
    raised.produce((json.dumps(place), json.dumps(value)))
    with_one_more = raised.frame([*BIDS[1:], ("Erna", "Erna", False)], first=1)
    found = raised.reconcile(with_one_more)
    assert found.counts.unexplained == 2
    unexplained = sorted(each.where for each in found.differences if each.cls.value == "unexplained")
    assert unexplained == [f"{TP} offset {offset}" for offset in (3, 5)]
