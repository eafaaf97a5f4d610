"""What becomes of a transaction when brokers refuse parts of it, or answer late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from include.errors import MessageRefused, ServiceUnreachable
from include.kafka import fenced_producer
from include.kafka.fenced_producer import FencedProducer
from include.offsets import TopicPartition
from tests.support.mock_cluster import MockCluster, Request, mock_cluster

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as cluster:
        cluster.create_topic(TP.topic)
        yield cluster


def test_transaction_stands_when_the_leader_moves_after_its_commit(cluster: MockCluster) -> None:
    cluster.fail(Request.LIST_OFFSETS, *[0, KafkaError.NOT_LEADER_FOR_PARTITION] * 3)
    assert FencedProducer("p", "view", lambda: None).write([(TP.topic, b"k", b"v")]) == 1


def test_sizes_and_limits_are_named_when_a_message_is_larger_than_the_client_sends(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_producer, "topic_config", lambda _: {"max.message.bytes": "1048588"})
    messages = [(TP.topic, b"k", b"v"), (TP.topic, b"k", b"v" * 1_200_000)]
    with pytest.raises(MessageRefused, match=r"too large: .* 1200001 bytes, .* most 1000000, .* 1048588") as raised:
        FencedProducer("p", "view", lambda: None).write(messages)
    assert "must be allowed" not in str(raised.value)
    assert "max.message.bytes" in raised.value.remedy


def test_message_is_sent_when_the_client_s_limit_is_that_of_its_topic(cluster: MockCluster) -> None:
    larger = FencedProducer("p", "view", lambda: None, {"message.max.bytes": "2000000"})
    assert larger.write([(TP.topic, b"k", b"v" * 1_200_000)]) == 1


def test_step_may_be_repeated_when_no_message_is_confirmed_in_time(cluster: MockCluster) -> None:
    cluster.fail(Request.PRODUCE, *[KafkaError.REQUEST_TIMED_OUT] * 200)
    with pytest.raises(ServiceUnreachable):
        FencedProducer("p", "view", lambda: None, {"message.timeout.ms": "1000"}).write([(TP.topic, b"k", b"v")])
