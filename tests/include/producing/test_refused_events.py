"""Events that Kafka refuses, against librdkafka's mock cluster: which come again, which are kept, and what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from include.errors import MessageRefused, RequestRefused, TidemarkError
from include.kafka.topics import TopicLimits
from include.pipelines import load_pipeline
from include.producing import generate
from include.producing.event_stream import Event
from include.producing.event_writer import EventWriter, Record
from include.producing.followed import Followed
from include.producing.follower import _Follower
from include.producing.messages.wiki_changes import describe_event
from include.producing.position import StreamPosition
from include.producing.refused_position import RefusedPosition
from tests.support.mock_cluster import MockCluster, Request, mock_cluster

PIPELINE = load_pipeline("wiki_changes")
TOPIC = PIPELINE.source.subscribe[0]
AT = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)
EVENTS = 50


class Stream:
    """Sends events of two days ago, and ends."""

    connections, address, url = 1, "http://stream", "http://stream/events"

    async def follow(self, receive: Any) -> None:
        for number in range(EVENTS):
            facts = {"meta": {"id": f"event {number}", "dt": AT.isoformat()}, "wiki": "w", "title": "t"}
            await receive(Event(str(number), "message", json.dumps(facts)))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    with mock_cluster() as made:
        made.create_topic(TOPIC)
        yield made


def followed(cluster: MockCluster, *errors: int) -> Followed:
    """Follow the stream to its end while the brokers answer so to the first batches."""
    position, stream = StreamPosition(PIPELINE.name, Stream.url), Stream()
    told: Any = lambda _: None  # noqa: E731
    with position.locked() as reached:
        of: Any = stream
        refused = RefusedPosition(PIPELINE, None)
        follower = _Follower(PIPELINE, TOPIC, of, position, reached, describe_event, told, refused)
        follower._producer.list_topics(TOPIC, timeout=10)
        cluster.fail(Request.PRODUCE, *errors)
        return asyncio.run(follower.run(None, 60))


def written(cluster: MockCluster) -> dict[str, datetime]:
    """Time of each event in the topic, by its id."""
    reader = Consumer({"bootstrap.servers": cluster.address, "group.id": "test", "enable.partition.eof": True})
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[str, datetime] = {}
    while (message := reader.poll(10)) is not None and not message.error():
        moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        found[json.loads(message.value() or b"")["meta"]["id"]] = moment
    reader.close()
    return found


@pytest.mark.parametrize("batches", [1, 2])
def test_events_are_written_with_the_present_time_when_the_topic_takes_none_of_their_own(
    cluster: MockCluster, batches: int
) -> None:
    """Of two refused batches, the second may hold an event whose time is the present one already."""
    begun = datetime.now(UTC)
    counts = followed(cluster, *[KafkaError.INVALID_TIMESTAMP] * batches)
    assert (counts.written, counts.refused, counts.last_event_id) == (EVENTS, 0, str(EVENTS - 1))
    times = written(cluster)
    assert times.keys() == {f"event {number}" for number in range(EVENTS)}
    assert any(moment >= begun - timedelta(seconds=1) for moment in times.values()), "the refused batch"
    assert all(moment == AT or moment >= begun - timedelta(seconds=1) for moment in times.values())


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.INVALID_TIMESTAMP, TidemarkError, ("Invalid timestamp", "see the topic's settings")),
        (KafkaError.POLICY_VIOLATION, TidemarkError, ("Policy violation", "see the topic's settings")),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RequestRefused, ("refuses this user a right", "grant the right")),
        (KafkaError._MSG_TIMED_OUT, RequestRefused, ("did not confirm", "min.insync.replicas", "nothing is lost")),
    ],
)
def test_reason_and_way_on_are_told_and_the_position_stays_when_kafka_takes_no_event(
    cluster: MockCluster, code: int, kind: type[TidemarkError], words: tuple[str, ...]
) -> None:
    with pytest.raises(TidemarkError) as failed:
        followed(cluster, *[code] * 1000)
    assert type(failed.value) is kind
    assert failed.value.pipeline == PIPELINE.name
    for each in (*words, *([TOPIC] if kind is TidemarkError else [])):
        assert each in str(failed.value)
    with StreamPosition(PIPELINE.name, Stream.url).locked() as reached:
        assert reached.last_event_id == ""


class Answering:
    """A producer whose answers are given; None confirms."""

    def __init__(self, *answers: int | None) -> None:
        self.sent: list[bytes] = []
        self.times: list[int] = []
        self._answers, self._waiting = list(answers), list[Any]()

    def produce(self, topic: str, value: bytes, key: bytes | None, *, timestamp: int, on_delivery: Any) -> None:
        self.sent.append(value)
        self.times.append(timestamp)
        self._waiting.append(on_delivery)

    def flush(self, _: float = 0) -> None:
        waiting, self._waiting = self._waiting, []
        for deliver in waiting:
            code = self._answers.pop(0)
            deliver(None if code is None else KafkaError(code), None)

    poll = flush


@pytest.mark.parametrize("ends", [False, True])
def test_only_the_refused_event_is_kept_when_others_were_in_its_batch(ends: bool) -> None:
    other, own = KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD
    answering: Any = Answering(other, own, other, None, None)
    writer = EventWriter(PIPELINE, TOPIC, answering)
    confirmed, refused = list[str](), list[str]()

    def record(name: str) -> Record:
        return Record(None, name.encode(), None, lambda: confirmed.append(name), lambda _: refused.append(name))

    assert all(writer.write(record(name)) for name in "abc")
    if ends:
        writer.finish(1)
    else:
        writer.serve()
        writer.serve()
    assert (confirmed, refused, writer.failure) == (["a", "c"], ["b"], None)
    assert answering.sent == [b"a", b"b", b"c", b"a", b"c"]


def test_event_is_kept_when_it_is_refused_with_the_present_time_too() -> None:
    answering: Any = Answering(KafkaError.INVALID_RECORD, KafkaError.INVALID_RECORD)
    writer, refused = EventWriter(PIPELINE, TOPIC, answering), list[str]()
    assert writer.write(Record(None, b"a", AT, pytest.fail, lambda error: refused.append(error.name())))
    writer.finish(1)
    assert (refused, writer.failure) == (["INVALID_RECORD"], None)
    assert answering.times[0] == AT.timestamp() * 1000
    assert answering.times[1] > AT.timestamp() * 1000


@pytest.mark.parametrize("batches", [1, 1000])
def test_only_an_event_that_is_too_large_itself_is_kept_when_the_topic_takes_smaller_batches(
    cluster: MockCluster, batches: int
) -> None:
    """With 1,000 such answers each event is refused alone, too."""
    counts = followed(cluster, *[KafkaError.MSG_SIZE_TOO_LARGE] * batches)
    kept = 0 if batches == 1 else EVENTS
    assert (counts.written, counts.refused, counts.last_event_id) == (EVENTS - kept, kept, str(EVENTS - 1))
    assert len(written(cluster)) == EVENTS - kept


def test_missing_topic_is_named_when_it_was_deleted_meanwhile() -> None:
    class Gone(Answering):
        def produce(self, *_: object, **__: object) -> None:
            from confluent_kafka import KafkaException

            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))

    gone: Any = Gone()
    writer = EventWriter(PIPELINE, TOPIC, gone)
    assert writer.write(Record(None, b"a", None, pytest.fail, lambda _: pytest.fail("kept")))
    assert writer.failure is not None
    assert f"there is no topic {TOPIC} any more" in str(writer.failure)


def test_generator_tells_why_kafka_refuses_its_messages(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate.kafka, "create_topic", lambda *_: None)
    # The mock cluster does not describe topics.
    monkeypatch.setattr(generate.kafka, "topic_limits", lambda _: TopicLimits(1_000_000, False))
    cluster.fail(Request.PRODUCE, *[KafkaError.POLICY_VIOLATION] * 1000)
    with pytest.raises(TidemarkError) as failed:
        generate.produce(PIPELINE, events=20)
    assert type(failed.value) is TidemarkError
    for words in (TOPIC, "Policy violation", "see the topic's settings", "0 of 20 messages were confirmed"):
        assert words in str(failed.value)
    assert failed.value.pipeline == PIPELINE.name


def test_generator_counts_what_was_confirmed_when_the_client_refuses_a_message(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate.kafka, "create_topic", lambda *_: None)
    monkeypatch.setattr(generate.kafka, "topic_limits", lambda _: TopicLimits(1_000_000, False))
    sizes = [10, 10, 2_000_000, 10]
    made = [(AT, None, b"x" * size, "") for size in sizes]
    monkeypatch.setattr(generate, "messages", lambda *_, **__: iter(made))
    monkeypatch.setattr(generate, "PRODUCER", {"linger.ms": 20, "message.max.bytes": 1_000_000})
    with pytest.raises(MessageRefused, match=f"Kafka refuses a message for the topic {TOPIC}: .*2 of 4 messages were"):
        generate.produce(PIPELINE, events=len(made))


def test_message_is_written_when_only_its_uncompressed_size_is_beyond_the_topic_s_limit(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are too large for a decoder of more than 4 MB are generated, too."""
    monkeypatch.setattr(generate.kafka, "create_topic", lambda *_: None)
    monkeypatch.setattr(generate.kafka, "topic_limits", lambda _: TopicLimits(1_000_000, False))
    monkeypatch.setattr(generate, "messages", lambda *_, **__: iter([(AT, None, b"x" * 5_000_000, "too_large")]))
    assert generate.produce(PIPELINE, events=1)["delivered"] == 1
