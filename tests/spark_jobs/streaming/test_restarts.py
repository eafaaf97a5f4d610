"""When a query beside the archive query starts again: real broker and ledger, micro-batches committed as told."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from spark_jobs.streaming.restarts import PoisonRestarts
from tests.support.leases import held_lease
from tests.support.topic_log import Log

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("in_process")]

VIEW = "hourly_counts"
FAILED = RuntimeError("no worker")


def test_query_starts_again_once_at_a_position_when_the_archive_came_through_with_nothing_diverted() -> None:
    source = KafkaTopics(subscribe=("restarts-log",))
    log = Log(replace(load_pipeline("nest_cameras"), name="restarts", source=source, views=(), reports=()))
    log.create(1)
    log.send(0, 0.5)
    log.archive()
    log.send(0, 0.6)
    restarts = PoisonRestarts(log.pipeline.name, threading.Event())
    restarts.withheld(VIEW)
    # The archive query has not passed the failing record yet.
    assert restarts.may_start(VIEW, FAILED, archive_runs=True) is False
    log.archive()
    assert restarts.may_start(VIEW, FAILED, archive_runs=True) is True
    restarts.withheld(VIEW)
    assert restarts.may_start(VIEW, FAILED, archive_runs=True) is False
    with pytest.raises(RuntimeError, match="no worker"):
        restarts.may_start(VIEW, FAILED, archive_runs=False)

    # It has made progress since then.
    restarts.withheld(VIEW)
    with held_lease(log.pipeline.name) as lease:
        (identity,) = micro_batches.stored_topics(log.pipeline.name).values()
        ranges = [OffsetRange(TopicPartition(log.topic, 0), 0, 2, identity)]
        micro_batches.move_query(lease, BatchCommit(log.pipeline.name, VIEW, "view", 0, ranges))
    assert restarts.may_start(VIEW, FAILED, archive_runs=True) is True
