"""Archived records that Kafka compacted away since, on a real broker: named, unless anything speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import functions as F

from include import kafka
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import Fates, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.reconciliation import ReconciliationCounts
from spark_jobs.archive.content_hash import NEWEST
from spark_jobs.intervals import read
from spark_jobs.reconciliation import against_ledger
from spark_jobs.reconciliation.compacted import Compacted, find_compacted
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import Home, wait_for
from tests.support import audit
from tests.support.leases import held_lease
from tests.support.topic_log import Log, hour

pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.slow]

COLUMNS = (
    "fate STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT, "
    "hash_1 BIGINT, hash_2 BIGINT"
)
COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
RECORDS = 300
RANGE = set(range(RECORDS))
KEYS = 3
"""Of the records after the first, which is alone with its key: it stays."""


def configure(log: Log, kind: ConfigResource.Type, name: str, **config: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    log.admin.incremental_alter_configs([resource])[resource].result(30)


@dataclass
class Cleaned:
    """A topic of which the cleaner took most records, since they were archived."""

    log: Log
    spark: Any
    visible: set[int]

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        return (OffsetRange(TopicPartition(self.log.topic, 0), 0, RECORDS, self.topic.topic_id),)

    @property
    def topic(self) -> TopicIdentity:
        return kafka.describe_topics([self.log.topic])[self.log.topic]

    def find(self, visible: set[int]) -> Compacted | None:
        name = self.log.pipeline.name
        pinned = pins.find_interval(name, hour(0).from_time) or PinnedInterval(0, name, hour(0), self.ranges, {})
        return find_compacted(pinned, self.frame(visible), self.frame(RANGE), self.ranges)

    def frame(self, offsets: set[int]) -> Any:
        return self.spark.createDataFrame(
            [("archived", self.log.topic, 0, offset, 0, 7, 7) for offset in sorted(offsets) if offset < RECORDS],
            COLUMNS,
        )

    def archive(self) -> None:
        """Archive all records, with what was then the code, before the cleaner takes most of them."""
        name, topic = self.log.pipeline.name, self.topic
        with held_lease(name) as lease:
            fates = {self.ranges[0].topic_partition: Fates(RECORDS)}
            micro_batches.commit(
                lease,
                BatchCommit(
                    name, ARCHIVE, "q", 0, self.ranges, {topic.topic: topic}, fates=fates, decoder_version="older"
                ),
            )

    def policy(self, policy: str) -> None:
        configure(self.log, ConfigResource.Type.TOPIC, self.log.topic, cleanup_policy=policy)


@pytest.fixture(scope="module")
def cleaned(in_process: Home, spark: Any, nest: Pipeline) -> Cleaned:
    log = Log(nest)
    log.create(1)
    configure(log, ConfigResource.Type.BROKER, "1", log_cleaner_backoff_ms="200")
    configure(log, ConfigResource.Type.TOPIC, log.topic, segment_ms="60000", min_cleanable_dirty_ratio="0.01")
    producer = kafka.producer(**{"batch.num.messages": 10})
    begin = int(hour(0).from_time.timestamp() * 1000)
    for n in range(2 * RECORDS):
        producer.produce(
            log.topic, b"x", b"key-%d" % (n % KEYS if n else KEYS), partition=0, timestamp=begin + n * 5_000
        )
    assert producer.flush(30) == 0
    made = Cleaned(log, spark, set())
    made.archive()
    made.policy("compact")

    def offsets() -> set[int]:
        return {offset for topic, _, offset in audit.read_topic(in_process.kafka, log.topic) if topic == log.topic}

    made.visible = wait_for("the cleaner's holes", lambda: len(found := offsets()) < RECORDS and found)
    # No more of them while the tests compare.
    configure(log, ConfigResource.Type.TOPIC, log.topic, min_compaction_lag_ms=str(2**60))
    made.visible = offsets()
    return made


@pytest.fixture(scope="module")
def nest() -> Pipeline:
    source = KafkaTopics(subscribe=("compacted-log",))
    return replace(load_pipeline("nest_cameras"), source=source, views=(), reports=())


def test_records_are_named_with_their_rows_when_they_were_compacted_since(cleaned: Cleaned) -> None:
    gone = RANGE - cleaned.visible
    found = cleaned.find(cleaned.visible)
    assert found is not None
    assert found.records == len(gone) > 0
    assert {row["kafka_offset"] for row in found.landed.collect()} == gone
    (named,) = found.reconciliation.differences
    assert (named.cls, named.where) == ("compacted_since", f"{cleaned.log.topic}-0")
    assert f"{len(gone)} records between offsets {min(gone)} and {max(gone)} were archived" in named.evidence
    assert found.reconciliation.unexplained == 0
    archived = cleaned.frame(RANGE)
    assert {row["kafka_offset"] for row in found.rows(archived).collect()} == gone


def test_nothing_is_explained_when_a_second_reader_sees_a_record_that_spark_did_not(cleaned: Cleaned) -> None:
    assert cleaned.find(cleaned.visible - {max(RANGE & cleaned.visible)}) is None


def test_nothing_is_explained_when_the_topic_is_not_compacted(cleaned: Cleaned) -> None:
    cleaned.policy("delete")
    try:
        assert cleaned.find(cleaned.visible) is None
    finally:
        cleaned.policy("compact")


def test_missing_right_is_named_when_the_topic_s_settings_must_not_be_read(
    cleaned: Cleaned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "cleanup_policy", lambda _: "")
    found = cleaned.find(cleaned.visible)
    assert found is not None
    assert (found.records, found.landed.count(), found.reconciliation.unexplained) == (0, 0, 0)
    (named,) = found.reconciliation.differences
    assert (named.cls, named.where) == ("unexplained", f"{cleaned.log.topic}-0")
    assert f"Grant DescribeConfigs on {cleaned.log.topic}" in named.evidence
    # It is not the right alone that is missing where a second reader sees a record that Spark did not.
    assert cleaned.find(cleaned.visible - {max(RANGE & cleaned.visible)}) is None


@pytest.fixture(scope="module")
def pinned(cleaned: Cleaned) -> PinnedInterval:
    name, topic = cleaned.log.pipeline.name, cleaned.topic
    written = pins.write_interval(
        name,
        hour(0),
        cleaned.ranges,
        {topic.topic: topic.topic_id},
        pinned_by="test",
        between=pins.find_neighbours(name, hour(0)),
    )
    assert written is not None
    return written


def test_records_are_named_when_newer_code_gave_others_another_fate_and_nothing_is_registered(
    cleaned: Cleaned, pinned: PinnedInterval
) -> None:
    gone = RANGE - cleaned.visible
    for version, empty, is_explained in (("newer", 5, True), ("older", 7, False)):
        attempt = attempts.begin_attempt(pinned, run_by="test", code_version=version, source="kafka")
        findings = BuildFindings(
            cleaned.ranges,
            {cleaned.ranges[0].topic_partition: FateCounts(RECORDS - empty, empty, 0, 0)},
            RecordCounts(RECORDS, RECORDS - empty, empty),
            ReconciliationCounts(),
            decoder_versions=(version,),
        )
        builds.note_build(attempts.load_attempt(attempt), [], findings)
        found = cleaned.find(cleaned.visible)
        # Code that decodes as the landed rows were decoded has no reason to count other fates.
        assert (found.records if found else 0) == (len(gone) if is_explained else 0)


def test_records_are_unexplained_when_they_were_compacted_since_and_no_archived_file_has_them(
    cleaned: Cleaned, pinned: PinnedInterval, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The archive's copy was decoded again, so both sides lack them.
    held = cleaned.frame(cleaned.visible).select(F.lit("quarantined").alias("fate"), *COORDINATES)
    monkeypatch.setattr(read, "read_unarchived", lambda *_: held)
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="newer", source="kafka")
    run = IntervalRun(cleaned.spark, cleaned.log.pipeline, attempts.load_attempt(attempt))
    found = read.read_interval(run, NEWEST, lambda rows: {}).reconciliation
    assert found.unexplained == len(RANGE - cleaned.visible)
    (named,) = (each for each in found.differences if each.cls == "unexplained")
    assert (named.what, named.where) == ("Kafka against the ledger", str(cleaned.ranges[0]))
    assert f"recorded {RECORDS} records, Kafka and the archive hold {len(RANGE & cleaned.visible)}" in named.evidence
    # The code of the registered revisions gave them no rows after their landing was removed.
    monkeypatch.setattr(against_ledger, "replaced_by_other_code", lambda *_: list(cleaned.ranges))
    found = read.read_interval(run, NEWEST, lambda rows: {}).reconciliation
    assert (found.unexplained, found.explained["code"]) == (0, len(RANGE - cleaned.visible))
