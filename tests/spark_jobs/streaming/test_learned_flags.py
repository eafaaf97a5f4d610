"""Limits from registered files to flags: real broker, ledger and Spark, without the other queries and the catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from include import kafka
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.streams import flags as flag_ledger
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.producing.generate import messages
from include.reconciliation import ReconciliationCounts
from spark_jobs.decoding.records import archive_rows, decode
from spark_jobs.intervals.write import revision_name, view_layout, write_revisions
from spark_jobs.reconciliation.flags import reconcile_flags
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.kafka_source import read_ranges
from spark_jobs.streaming.flag_query import task_slots
from spark_jobs.views.aggregate import aggregate_view
from tests.conftest import Home, settings_of
from tests.support import audit
from tests.support.bids import expected_flags, fates_of, flags
from tests.support.raised_flags import raise_flags
from tests.support.topic_log import Log, hour

pytestmark = [pytest.mark.spark, pytest.mark.services]

BIDS = load_pipeline("auction_bids")
EVENTS = 1000


class Auctions(Log):
    """The pipeline's topic, and its intervals as far as limits and flags need them."""

    def bid(self, number: int, seed: int) -> None:
        """Generated bids of an hour, all good, archived."""
        bounds = {"start": hour(number).from_time, "span": timedelta(hours=1)}
        for moment, key, value, _ in messages(BIDS, events=EVENTS, seed=seed, bad_fraction=0, **bounds):
            self.producer.produce(self.topic, value, key, partition=0, timestamp=int(moment.timestamp() * 1000))
        assert self.producer.flush(30) == 0
        self.archive()

    def pinned_hour(self, number: int) -> PinnedInterval:
        self.pin(number)
        return next(each for each in self.pinned() if each.interval == hour(number))


def run_of(spark: Any, pinned: PinnedInterval) -> IntervalRun:
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1a2b3c", source="kafka")
    return IntervalRun(spark, BIDS, attempts.load_attempt(attempt))


def rows_of(run: IntervalRun) -> DataFrame:
    return archive_rows(BIDS, decode(BIDS, read_ranges(run.spark, run.pinned.ranges)))


def register_views(run: IntervalRun) -> set[str]:
    """Write the interval's views and register them; the names of their revisions."""
    rows, name = rows_of(run).persist(), revision_name(run.attempt.id, datetime(2026, 11, 20))
    built = [
        each
        for view in BIDS.views
        for each in write_revisions(
            aggregate_view(BIDS, view, rows, {}), view_layout(BIDS, view), run.pinned.interval, name
        )
    ]
    rows.unpersist()
    fates = {each.topic_partition: FateCounts(EVENTS, 0, 0, 0) for each in run.pinned.ranges}
    counts = RecordCounts(in_ranges=EVENTS, archived=EVENTS)
    findings = BuildFindings(run.pinned.ranges, fates, counts, ReconciliationCounts(matched=EVENTS))
    builds.note_build(run.attempt, built, findings)
    changes = Changes(points=tuple(built))
    spec = attempts.load_attempt(run.attempt.id)
    builds.finish_registration(builds.begin_registration(spec, Validation(True, BIDS.name), changes))
    return {each.revision for each in built}


def test_bids_are_flagged_by_limits_of_the_registered_hour_before_and_an_interval_recomputes_each_flag(
    home: Home, spark: Any
) -> None:
    with settings_of(home, TIDEMARK_LEASE_SECONDS="1200"):
        log = Auctions(BIDS)
        log.create(1)
        log.bid(0, seed=7)
        registered = register_views(run_of(spark, first := log.pinned_hour(0)))
        assert raise_flags(spark, BIDS) == {each.topic_partition: EVENTS for each in first.ranges}
        log.bid(1, seed=8)
        raise_flags(spark, BIDS)

        records = audit.read_topic(home.kafka, log.topic)
        bids = {c[:3]: bid for c, bid in fates_of(records).rows.items()}
        before = {c: bid for c, bid in bids.items() if c[2] < EVENTS}
        raised = flags(home.kafka)
        found = {c: {rule["rule"] for rule in flag["rules"]} for c, flag in raised.items()}
        wanted = expected_flags({c: b for c, b in bids.items() if c not in before}, list(before.values()))
        assert found == wanted
        assert set().union(*found.values()) == {"own_auction", "far_above", "burst", "shill_pair"}
        version, _ = flag_ledger.last_limits(BIDS.name)
        assert {flag["limits_version"] for flag in raised.values()} == {version}
        assert learned_from(version) == registered

        second = run_of(spark, log.pinned_hour(1))
        counts = reconcile_flags(second, rows_of(second)).counts
        assert (counts.matched, counts.pending, counts.unexplained) == (len(found), 0, 0)


def test_slot_is_there_for_each_topic_partition_when_there_are_more_than_declared(home: Home) -> None:
    sources = {
        "new": KafkaTopics(subscribe=("created-by-its-stream",)),
        "larger": KafkaTopics(subscribe=("slots-of-seven",)),
        "new and larger": KafkaTopics(subscribe=("created-by-its-stream", "slots-of-seven")),
        "pattern": KafkaTopics(pattern="slots-of-.*"),
        "pattern of none": KafkaTopics(pattern="slots-of-nothing-.*"),
        "assigned": KafkaTopics(assign={"slots-of-seven": (0, 6)}),
    }
    with settings_of(home):
        kafka.create_topic("slots-of-seven", 7)
        kafka.create_topic("slots-of-three", 3)
        slots = {name: task_slots(replace(BIDS, source=source)) for name, source in sources.items()}
    # Two more, for the other queries.
    assert slots == {
        "new": 6, "larger": 9, "new and larger": 13, "pattern": 12, "pattern of none": 6, "assigned": 4,
    }  # fmt: skip


def learned_from(version: int) -> set[str]:
    """Names of the revisions that the limits were learned from."""
    from include.ledger.database import session
    from include.ledger.models import LimitsVersion

    with session() as ledger:
        return {each["revision"] for each in ledger.get_one(LimitsVersion, version).learned_from}
