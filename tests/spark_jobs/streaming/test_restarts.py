"""When a query beside the archive query starts again: real broker and ledger, micro-batches committed as told."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from spark_jobs.streaming import restarts
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
    starts = PoisonRestarts(log.pipeline.name, threading.Event())
    starts.withheld(VIEW)
    # The archive query has not passed the failing record yet.
    assert starts.may_start(VIEW, FAILED, archive_runs=True) is False
    log.archive()
    assert starts.may_start(VIEW, FAILED, archive_runs=True) is True
    starts.withheld(VIEW)
    assert starts.may_start(VIEW, FAILED, archive_runs=True) is False
    with pytest.raises(RuntimeError, match="no worker"):
        starts.may_start(VIEW, FAILED, archive_runs=False)

    # It has made progress since then.
    starts.withheld(VIEW)
    with held_lease(log.pipeline.name) as lease:
        (identity,) = micro_batches.stored_topics(log.pipeline.name).values()
        ranges = [OffsetRange(TopicPartition(log.topic, 0), 0, 2, identity)]
        micro_batches.move_query(lease, BatchCommit(log.pipeline.name, VIEW, "view", 0, ranges))
    assert starts.may_start(VIEW, FAILED, archive_runs=True) is True


def test_diverted_record_is_withheld_until_spark_must_have_committed_the_micro_batch_that_held_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver may be killed between the ledger's commit and Spark's own: Spark runs the micro-batch again."""
    monkeypatch.setattr(restarts, "withhold", lambda records: list(records))
    name, topic = "restarts_diverted", TopicIdentity("restarts-diverted", "id", 1)

    def commit(query: str, number: int, begin: int, until: int, **more: Any) -> None:
        ranges = [OffsetRange(TopicPartition(topic.topic, 0), begin, until, topic.topic_id)]
        with held_lease(name) as lease:
            batch = BatchCommit(name, query, f"{name}-{query}", number, ranges, {topic.topic: topic}, **more)
            micro_batches.commit(lease, batch)

    diverted = (topic.topic, 0, 1)
    commit(ARCHIVE, 0, 0, 4, diverted={diverted: "it threw"})
    starts = PoisonRestarts(name, threading.Event())
    assert starts.withheld(VIEW) == [diverted]
    commit(VIEW, 0, 0, 2)
    assert starts.withheld(VIEW) == [diverted]
    commit(VIEW, 1, 2, 4)
    assert starts.withheld(VIEW) == []
