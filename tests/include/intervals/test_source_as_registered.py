"""From where an interval is built again without taking back what newer code corrected: real Kafka and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from sqlalchemy import func, select, update

from include import kafka, offsets
from include.housekeeping.renaming import rename
from include.intervals.steps import source_as_registered
from include.ledger.archive.decoders import decoded_otherwise, decoders_of
from include.ledger.database import session
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, RecordCounts, Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.ledger.models import LandingFileRow, MicroBatch
from include.offsets import Fate
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.reconciliation import ReconciliationCounts
from include.streams.generations import accept_losses
from tests.conftest import Home, wait_for
from tests.support.leases import held_lease
from tests.support.topic_log import Log

pytestmark = pytest.mark.services


def register(pinned: PinnedInterval, *decoders: str) -> None:
    """A revision whose rows were decoded by these versions of the code."""
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source=Source.KAFKA)
    spec = attempts.load_attempt(attempt)
    partition = f"date=2026-11-20/interval={pinned.interval.label}"
    built = BuiltRevision(pinned.pipeline, partition, f"r-{attempt}", "file:///nowhere", 1, "0" * 64, {})
    counts = RecordCounts(in_ranges=3, archived=3, empty=0, quarantined=0)
    findings = BuildFindings(pinned.ranges, {}, counts, ReconciliationCounts(matched=3), decoder_versions=decoders)
    builds.note_build(spec, [built], findings)
    spec = attempts.load_attempt(attempt)
    registration = builds.begin_registration(spec, Validation(True, pinned.pipeline), Changes(points=(built,)))
    builds.finish_registration(registration)


def expire(log: Log, tp: offsets.TopicPartition, below: int) -> None:
    """Let retention remove a topic partition's offsets below one."""
    place = TopicPartition(log.topic, 0, below)
    log.admin.delete_records([place])[place].result(30)
    wait_for("the offsets to go", lambda: kafka.offset_bounds([tp])[tp][0] == below, 30)


def test_interval_is_built_from_kafka_or_left_when_newer_code_corrected_what_landed(in_process: Home) -> None:
    nest = load_pipeline("nest_cameras")
    archive = replace(nest.archive, renamed={"device_id": "camera_id"}, iceberg=False)
    source = KafkaTopics(subscribe=("renamed-log",))
    log = Log(replace(nest, name="renamed", source=source, archive=archive, views=(), reports=()))
    log.create(1)
    log.send(0, 0.1, 0.2, 0.3, 1.1)
    log.archive(has_records=True)
    log.pin(0)
    [pinned] = log.pinned()
    with session() as ledger:
        batches = select(MicroBatch.id).where(MicroBatch.pipeline == "renamed")
        ledger.execute(update(MicroBatch).where(MicroBatch.id.in_(batches)).values(decoder_version="old"))
        [batch] = ledger.scalars(batches)
        ledger.add(LandingFileRow(micro_batch_id=batch, fate=Fate.ARCHIVED, path="landing/renamed/0", rows=4, bytes=1))

    register(pinned, "old")
    assert source_as_registered(pinned) is Source.ARCHIVE
    register(pinned, "new")
    assert source_as_registered(pinned) is Source.KAFKA
    expire(log, pinned.ranges[0].topic_partition, 2)
    assert source_as_registered(pinned) is None
    said: list[str] = []
    done = rename(log.pipeline, "test", said.append)
    assert (done["built_intervals"], len(done["left"])) == (0, 1)
    assert [line for line in said if "is left (1 of 1)" in line and line.endswith("--source archive")]

    with session() as ledger:
        ledger.execute(
            update(LandingFileRow).where(LandingFileRow.micro_batch_id == batch).values(removed_at=func.now())
        )
    assert source_as_registered(pinned) is Source.ARCHIVE


def test_accepted_loss_is_of_no_code_when_an_interval_begins_with_it(in_process: Home) -> None:
    source = KafkaTopics(subscribe=("lost-log",))
    log = Log(replace(load_pipeline("nest_cameras"), name="lost", source=source, views=(), reports=()))
    log.create(1)
    log.archive()
    log.send(0, 0.1, 0.2, 0.3, 1.1)
    [tp] = kafka.topic_partitions_of(kafka.describe_topics([log.topic]).values())
    expire(log, tp, 1)
    with held_lease("lost") as lease:
        assert [len(each) for each in accept_losses(log.pipeline, lease, reason="retention", accepted_by="test")] == [1]
    log.archive(has_records=True)
    log.pin(0)
    [pinned] = log.pinned()
    with session() as ledger:
        landed = MicroBatch.pipeline == "lost", MicroBatch.query_id.startswith("query")
        ledger.execute(update(MicroBatch).where(*landed).values(decoder_version="new"))

    assert decoders_of("lost", pinned.ranges) == ["new"]
    assert decoded_otherwise("lost", pinned.ranges, "new") == []
    # What builds from the archive recorded before.
    register(pinned, "new", "unknown")
    assert source_as_registered(pinned) is Source.ARCHIVE
    register(pinned, "new")
    assert source_as_registered(pinned) is Source.ARCHIVE
    register(pinned, "newer")
    assert source_as_registered(pinned) is Source.KAFKA
