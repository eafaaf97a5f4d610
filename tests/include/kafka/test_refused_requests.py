"""What becomes of a broker's refusals and of answers that pass: leaders that move, rights that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from include import kafka
from include.alerts.channels import failure_of
from include.errors import MessageRefused, RequestRefused, ServiceUnreachable
from include.kafka import client, gap_proof, offset_search, refusals, truncation
from include.kafka.gap_proof import prove_gaps
from include.kafka.record_batches import sample_batch
from include.kafka.sources import first_offsets
from include.kafka.timestamps import TimestampRule
from include.monitor.streams.live_windows import LiveWindows
from include.monitor.streams.view_watch import Following, ViewWatch
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.proof import verify
from tests.conftest import wait_for
from tests.support.mock_cluster import FIRST_TIMESTAMP, MockCluster, Request, mock_cluster

TP = TopicPartition("t", 0)
RECORDS = 20


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[MockCluster]:
    with mock_cluster() as cluster:
        cluster.create_topic(TP.topic, records=RECORDS)
        yield cluster


@pytest.fixture
def cluster(one_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    """The cluster without errors of an earlier test."""
    monkeypatch.setattr(refusals, "_AGAIN_AFTER", 0.02)
    yield one_cluster
    for request in Request:
        one_cluster.fail(request)


@pytest.mark.parametrize("errors", [(1, 0), (0, 1)], ids=["earliest", "end"])
def test_earliest_offset_is_never_the_end_when_the_leader_moves(cluster: MockCluster, errors: tuple[int, ...]) -> None:
    moved = [KafkaError.NOT_LEADER_FOR_PARTITION * each for each in errors]
    # Without the mend two of three calls mistook the one for the other.
    for _ in range(10):
        cluster.fail(Request.LIST_OFFSETS, *moved)
        bounds = kafka.offset_bounds([TP])
        assert bounds == {TP: (0, RECORDS)}
        assert first_offsets(KafkaTopics(subscribe=("t",), starting_offsets="earliest"), bounds) == {TP: 0}


def test_nothing_counts_as_lost_when_the_leader_moves(cluster: MockCluster) -> None:
    for _ in range(10):
        cluster.fail(Request.LIST_OFFSETS, KafkaError.NOT_LEADER_FOR_PARTITION)
        kafka.check_retained("p", [OffsetRange(TP, 3, 9), OffsetRange(TP, 9, 12)])


def test_proof_s_records_are_not_said_to_be_removed_when_the_leader_moves(cluster: MockCluster) -> None:
    range_of_proof = {"topic": TP.topic, "partition": TP.partition, "from_offset": 3, "until_offset": 6}
    for _ in range(10):
        cluster.fail(Request.LIST_OFFSETS, KafkaError.NOT_LEADER_FOR_PARTITION)
        with pytest.raises(verify.Unreachable, match="Not leader"):
            verify._read_range(range_of_proof, {"bootstrap.servers": cluster.address})


def test_topics_and_way_out_are_named_when_no_leader_answers(cluster: MockCluster) -> None:
    cluster.fail(Request.LIST_OFFSETS, *[KafkaError.NOT_LEADER_FOR_PARTITION] * 50)
    with pytest.raises(RequestRefused, match=r"gives no answer about t at present: .*Not leader") as raised:
        kafka.offset_bounds([TP])
    assert "up kafka" not in str(raised.value)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_step_may_be_repeated_when_brokers_give_no_answer_at_present(code: int) -> None:
    with pytest.raises(ServiceUnreachable, match="about a, b at present"), kafka.reaching_kafka("b", "a"):
        raise KafkaException(KafkaError(code))


def test_answer_is_a_defect_when_it_says_nothing_about_the_brokers() -> None:
    with pytest.raises(KafkaException), kafka.reaching_kafka("t"):
        raise KafkaException(KafkaError(KafkaError.INVALID_REQUEST))


def test_topic_and_the_rights_are_named_when_the_user_must_not_read_it(cluster: MockCluster) -> None:
    cluster.fail(Request.LIST_OFFSETS, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 10)
    with pytest.raises(RequestRefused, match=r"refuses this user a right about t: .*deployment\.md"):
        kafka.offset_bounds([TP])


def test_error_of_one_topic_partition_is_no_offset_when_the_others_answer(cluster: MockCluster) -> None:
    other = TopicPartition(TP.topic, 5)
    for ask in (kafka.offset_bounds, lambda asked: kafka.offsets_at(datetime(2026, 1, 1, tzinfo=UTC), asked)):
        with pytest.raises(KafkaException, match="UNKNOWN_PARTITION"):
            ask([TP, other])


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_records_are_read_when_the_reader_s_group_must_not_be_described(cluster: MockCluster, code: int) -> None:
    cluster.fail(Request.FIND_COORDINATOR, *[code] * 500)
    assert truncation.timestamps_at({TP: 5}) == {TP: FIRST_TIMESTAMP + 5000}
    assert kafka.record_times({TP: 5}).keys() == {TP}
    assert kafka.first_timestamp({TP: (0, RECORDS)}) is not None
    assert prove_gaps({TP: [(3, 4)]})[TP].seen[0][0] == 3
    assert len(list(offset_search._read_on(TP, 0))) == RECORDS
    at_start = TimestampRule((FIRST_TIMESTAMP + 10**9), lambda *_: None)
    assert offset_search.first_times({TP: (0, RECORDS)}, at_start).keys() == {TP}
    range_of_proof = {"topic": TP.topic, "partition": TP.partition, "from_offset": 3, "until_offset": 6}
    first, seen = verify._read_range(range_of_proof, {"bootstrap.servers": cluster.address})
    assert (first, sorted(seen)) == (0, [3, 4, 5])
    batch = sample_batch(OffsetRange(TP, 0, RECORDS))
    assert batch is not None
    assert batch.records == RECORDS


def test_reader_gives_up_when_nothing_but_refusals_of_its_group_comes(cluster: MockCluster) -> None:
    cluster.fail(Request.FIND_COORDINATOR, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 500)
    reader = kafka.consumer()
    try:
        reader.assign([ClientTopicPartition(TP.topic, TP.partition, RECORDS)])
        assert kafka.next_message(reader, 1.0) is None
    finally:
        reader.close()


def test_broker_counts_as_unreachable_when_nothing_is_fetched(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.fail(Request.FETCH, *[KafkaError.NOT_LEADER_FOR_PARTITION] * 1000)
    monkeypatch.setattr(client, "_STATISTICS_MS", 50)
    monkeypatch.setattr(gap_proof, "_PATIENCE", 0.5)
    monkeypatch.setattr(truncation, "TIMEOUT", 0.5)
    for ask in (lambda: prove_gaps({TP: [(3, 4)]}), lambda: truncation.timestamps_at({TP: 3})):
        with pytest.raises(ServiceUnreachable, match="nothing of t-0 from offset 3 within"):
            ask()


def test_page_reads_on_when_the_reader_s_group_must_not_be_described(cluster: MockCluster) -> None:
    cluster.fail(Request.FIND_COORDINATOR, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 500)
    pipeline = load_pipeline("nest_cameras")
    view = pipeline.views[0]
    known = Following(pipeline, view, 0.0, LiveWindows(view))
    at_end: set[int] = set()
    messages: list[Message] = []
    reader = kafka.consumer(**{"enable.partition.eof": True})

    def refused_and_at_the_end() -> bool:
        messages.extend(reader.consume(100, 0.3))
        codes = {error.code() for each in messages if (error := each.error()) is not None}
        return KafkaError._PARTITION_EOF in codes and None in [each.topic() for each in messages]

    try:
        reader.assign([ClientTopicPartition(TP.topic, TP.partition, 0)])
        wait_for("the refusal and the end of the topic partition", refused_and_at_the_end, 30)
    finally:
        reader.close()
    ViewWatch._take(messages, known, at_end)
    # Every record was read; none of them is a key and value of the view.
    assert known.foreign == RECORDS
    assert at_end == {TP.partition}


def test_message_is_named_too_large_when_the_client_refuses_it(cluster: MockCluster) -> None:
    with pytest.raises(MessageRefused, match=r"a message for the topic t: .*too large") as raised:
        kafka.send(TP.topic, [(b"k", b"x" * 1_010_000)])
    # An alert's other channels, and other alerts, are tried.
    assert failure_of(raised.value) == "refused"


def test_broker_s_refusal_is_no_outage_when_a_message_is_sent(cluster: MockCluster) -> None:
    cluster.fail(Request.PRODUCE, KafkaError.INVALID_RECORD)
    with pytest.raises(MessageRefused, match="the topic t: "):
        kafka.send("t", [(b"k", b"v")])
    cluster.fail(Request.PRODUCE, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 10)
    with pytest.raises(ServiceUnreachable, match="refuses this user a right about t"):
        kafka.send("t", [(b"k", b"v")])
