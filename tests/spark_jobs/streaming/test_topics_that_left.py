"""What a stream does about a topic that its pipeline has left, and reads again: real broker, ledger and Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest

from include.kafka.consumer_group import group_of
from include.ledger.archive import micro_batches
from include.ledger.streams.flags import FLAGS
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.streams import generations
from spark_jobs.streaming.kafka_stream import run_stream
from tests.conftest import Home, settings_of
from tests.support.raised_flags import raise_flags
from tests.support.topic_log import Log

pytestmark = [pytest.mark.spark, pytest.mark.services]

KEPT, FORMER = TopicPartition("bids-kept", 0), TopicPartition("bids-former", 0)


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
        assert raise_flags(spark, both) == {KEPT: 1, FORMER: 1}
        for log in logs:
            log.send(0, 0.2, 0.3)
        assert raise_flags(spark, both) == {}
        logs[1].send(0, 0.4)
        for log in logs:
            log.archive()
        generations.unsubscribe(kept, FORMER.topic, reason="over", left_by="test@host")
        assert raise_flags(spark, kept) == {KEPT: 3}
        assert micro_batches.positions(bids.name, FLAGS) == {KEPT: 3, FORMER: 3}
        generations.new_generation(both, reason="it is back", started_by="test@host")
        assert raise_flags(spark, both) == {KEPT: 3, FORMER: 3}
        assert micro_batches.positions(bids.name, FLAGS) == {KEPT: 3, FORMER: 4}


def test_consumer_group_does_not_tell_a_position_of_a_topic_that_left(home: Home, spark: Any) -> None:
    nest = replace(load_pipeline("nest_cameras"), views=(), reports=())
    kept, former = (replace(nest, source=KafkaTopics(subscribe=(topic,))) for topic in ("told-kept", "told-former"))
    with settings_of(home):
        for log in (Log(kept), Log(former, 10)):
            log.create(1)
            log.send(0, 0.1)
            log.archive()
        generations.unsubscribe(kept, "told-former", reason="over", left_by="test@host")
        assert run_stream(lambda: spark, kept, until_caught_up=True) == 0
    group = confluent_kafka.Consumer({"bootstrap.servers": home.kafka, "group.id": group_of(nest.name)})
    wanted = [confluent_kafka.TopicPartition(topic, 0) for topic in ("told-kept", "told-former")]
    told = {each.topic: each.offset for each in group.committed(wanted, timeout=20)}
    group.close()
    assert told == {"told-kept": 1, "told-former": confluent_kafka.OFFSET_INVALID}
