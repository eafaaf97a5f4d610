"""Where flags go on in a topic that a pipeline has left and reads again: real broker, ledger and flags' query."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from include.ledger.archive import micro_batches
from include.ledger.streams import writers
from include.ledger.streams.flags import FLAGS
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.streams import generations
from include.streams.start import begin
from spark_jobs.streaming.flag_query import FlagQuery
from spark_jobs.streaming.restarts import PoisonRestarts
from tests.conftest import Home, settings_of
from tests.support.topic_log import Log

pytestmark = [pytest.mark.spark, pytest.mark.services]

KEPT, FORMER = TopicPartition("bids-kept", 0), TopicPartition("bids-former", 0)


def flag(spark: Any, pipeline: Pipeline) -> dict[TopicPartition, int]:
    """Run the flags' query until it has caught up, and return where it began: nothing where it continued."""
    lease = writers.acquire(pipeline.name)
    start = begin(pipeline)
    begins = start.note(pipeline, FLAGS)
    restarts = PoisonRestarts(pipeline.name, threading.Event())
    flags = FlagQuery(spark, pipeline, lease, start.generation, restarts, until_caught_up=True)
    query = flags.start(begins)
    query.awaitTermination()
    flags.stop(query)
    writers.release(lease)
    return begins


def test_flags_go_on_where_they_were_when_a_topic_left_and_is_declared_again(home: Home, spark: Any) -> None:
    bids = load_pipeline("auction_bids")
    kept, former, both = (
        replace(bids, source=KafkaTopics(subscribe=topics))
        for topics in ((KEPT.topic,), (FORMER.topic,), (KEPT.topic, FORMER.topic))
    )
    with settings_of(home, TIDEMARK_LEASE_SECONDS="1200"):
        logs = Log(kept), Log(former, 10)
        for log in logs:
            log.create(1)
            log.send(0, 0.1)
            log.archive()
        assert flag(spark, both) == {KEPT: 1, FORMER: 1}
        for log in logs:
            log.send(0, 0.2, 0.3)
        assert flag(spark, both) == {}
        logs[1].send(0, 0.4)
        for log in logs:
            log.archive()
        generations.unsubscribe(kept, FORMER.topic, reason="over", left_by="test@host")
        assert flag(spark, kept) == {KEPT: 3}
        assert micro_batches.positions(bids.name, FLAGS) == {KEPT: 3, FORMER: 3}
        generations.new_generation(both, reason="it is back", started_by="test@host")
        assert flag(spark, both) == {KEPT: 3, FORMER: 3}
        assert micro_batches.positions(bids.name, FLAGS) == {KEPT: 3, FORMER: 4}
