"""What becomes of a transaction when brokers refuse parts of it, or answer late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from include.errors import AnotherWriter, MessageRefused, ServiceUnreachable, TidemarkError
from include.kafka import fenced_producer
from include.kafka.fenced_producer import FencedProducer, Message
from include.offsets import TopicPartition
from tests.support.mock_cluster import MockCluster, Request, mock_cluster

TP = TopicPartition("t", 0)

MANY = 20_000
"""So many messages that a broker refuses the first ones while the last ones are enqueued."""


def messages(count: int) -> list[Message]:
    return [(TP.topic, f"k{number:05}".encode(), b"values") for number in range(count)]


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


@pytest.mark.parametrize("code", [KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS])
def test_step_may_be_repeated_and_the_reason_is_looked_for_when_no_message_is_confirmed_in_time(
    cluster: MockCluster, code: int
) -> None:
    """The client tells no answer that may pass: brokers with too few replicas in sync would look like ones away."""
    cluster.fail(Request.PRODUCE, *[code] * 3000)
    with pytest.raises(ServiceUnreachable, match="answers, but takes no messages for t in time: ") as raised:
        FencedProducer("p", "view", lambda: None, {"message.timeout.ms": "1000"}).write([(TP.topic, b"k", b"v")])
    assert "min.insync.replicas" in raised.value.remedy
    assert "up kafka" not in str(raised.value)


def test_messages_are_counted_and_written_later_when_they_are_not_confirmed_in_time(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FencedProducer("p", "view", lambda: None)
    driver.write(messages(1))
    monkeypatch.setattr(fenced_producer, "PATIENCE", 1.0)
    cluster.fail(Request.PRODUCE, *[KafkaError.NOT_ENOUGH_REPLICAS] * 3000)
    with pytest.raises(ServiceUnreachable, match="for t in time: it did not confirm 3 messages of view within 1 s"):
        driver.write(messages(3))
    monkeypatch.undo()
    cluster.fail(Request.PRODUCE)
    assert driver.write(messages(3)) == 3


def test_topic_partition_is_named_when_it_has_no_leader(cluster: MockCluster) -> None:
    cluster.create_topic("other")
    # Before anything is written: the mock's brokers end the process at a write to one that they no longer lead.
    cluster.lose_leader("other", 0)
    with pytest.raises(ServiceUnreachable, match=r"no messages for other, t in time: .*; other-0 has no leader"):
        FencedProducer("p", "view", lambda: None, {"message.timeout.ms": "1000"}).write(
            [(TP.topic, b"k", b"v"), ("other", b"k", b"v")]
        )


def test_topic_of_transactions_is_named_when_their_coordinator_is_away(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_producer, "PATIENCE", 1.0)
    cluster.create_topic("__transaction_state")
    cluster.lose_leader("__transaction_state", 0)
    cluster.fail(Request.FIND_COORDINATOR, *[KafkaError.COORDINATOR_NOT_AVAILABLE] * 3000)
    with pytest.raises(ServiceUnreachable, match="for t, __transaction_state in time: ") as raised:
        FencedProducer("p", "view", lambda: None).write(messages(1))
    assert "; __transaction_state-0 has no leader" in raised.value.message


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("request_kind", "code"),
    [
        (Request.ADD_PARTITIONS_TO_TXN, KafkaError.PRODUCER_FENCED),
        (Request.ADD_PARTITIONS_TO_TXN, KafkaError.INVALID_PRODUCER_EPOCH),
        (Request.ADD_PARTITIONS_TO_TXN, KafkaError.INVALID_PRODUCER_ID_MAPPING),
        (Request.PRODUCE, KafkaError.INVALID_PRODUCER_EPOCH),
        (Request.PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (Request.PRODUCE, KafkaError.UNKNOWN_PRODUCER_ID),
    ],
)
def test_transaction_is_repeated_when_brokers_end_it_once(
    cluster: MockCluster, request_kind: Request, code: int, count: int
) -> None:
    checks: list[None] = []
    driver = FencedProducer("p", "view", lambda: checks.append(None))
    driver.write([(TP.topic, b"k", b"before")])
    checks.clear()
    cluster.fail(request_kind, code)
    assert driver.write(messages(count)) == count
    assert checks, "the lease was not checked"


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("request_kind", "code", "kind", "said"),
    [
        (
            Request.ADD_PARTITIONS_TO_TXN,
            KafkaError.PRODUCER_FENCED,
            AnotherWriter,
            "transactional id tidemark-p-view shuts out",
        ),
        (
            Request.ADD_PARTITIONS_TO_TXN,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            TidemarkError,
            "must be allowed to write its topics",
        ),
        (Request.PRODUCE, KafkaError.PRODUCER_FENCED, AnotherWriter, "transactional id tidemark-p-view shuts out"),
        (Request.PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE, MessageRefused, "the largest message has 12 bytes"),
    ],
)
def test_reason_is_told_when_brokers_refuse_a_transaction_for_ever(
    cluster: MockCluster,
    monkeypatch: pytest.MonkeyPatch,
    request_kind: Request,
    code: int,
    kind: type[TidemarkError],
    said: str,
    count: int,
) -> None:
    monkeypatch.setattr(fenced_producer, "topic_config", lambda _: {})
    driver = FencedProducer("p", "view", lambda: None)
    driver.write([(TP.topic, b"k", b"before")])
    cluster.fail(request_kind, *[code] * 200)
    with pytest.raises(kind, match=said) as raised:
        driver.write(messages(count))
    assert type(raised.value) is kind
