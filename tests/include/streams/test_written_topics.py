"""The compacted topic of a speed view: made for a generation that has written nothing, refused when it was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition

from include import kafka
from include.erasure import run
from include.erasure.run import Wish, dry_run, erase
from include.errors import UsageError
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.offsets import TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import CompactedTopic, KafkaTopics
from include.streams import generations as ways_on
from include.streams import written_topics
from include.streams.written_topics import (
    check_compacted_topics,
    check_not_taken_over,
    check_only_ledger,
    check_own_topics,
    create_written_topics,
    hidden_values,
    note_compacted_topics,
    owner_of,
)
from tests.conftest import Home
from tests.support.transactions import transactional_producer, write_transaction

PIPELINE = load_pipeline("nest_cameras")
VIEW = PIPELINE.views[0].name
TOPIC = PIPELINE.views[0].speed.topic


@dataclass
class Written:
    """Kafka's topics by their ids, and what the ledger has of the current generation."""

    topics: dict[str, str] = field(default_factory=dict)
    generation: StreamGeneration | None = None
    views: set[str] = field(default_factory=set)
    """Those that have written in the generation."""
    created: list[str] = field(default_factory=list)

    def describe(self, topics: Any) -> dict[str, TopicIdentity]:
        return {topic: TopicIdentity(topic, self.topics[topic], 1) for topic in topics if topic in self.topics}

    def create(self, topic: str, *_: object, **__: object) -> bool:
        if topic not in self.topics:
            self.created.append(topic)
            self.topics[topic] = f"id-{len(self.created)}"
        return topic in self.created

    def note(self, generation: StreamGeneration, topics: dict[str, str]) -> None:
        self.generation = replace(generation, topics={**generation.topics, **topics})

    def start(self) -> None:
        """What a start does about them."""
        check_compacted_topics(PIPELINE)
        create_written_topics(PIPELINE)
        self.generation = self.generation or StreamGeneration(PIPELINE.name, 0, {}, {})
        self.generation = note_compacted_topics(PIPELINE, self.generation)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    found = Written()
    monkeypatch.setattr(kafka, "describe_topics", found.describe)
    monkeypatch.setattr(kafka, "create_topic", found.create)
    monkeypatch.setattr(generations, "current", lambda _: found.generation)
    monkeypatch.setattr(generations, "has_written", lambda _, view: view in found.views)
    monkeypatch.setattr(generations, "note_topics", found.note)
    return found


@dataclass
class Message:
    """A record of a topic."""

    text: bytes | None
    carried: list[tuple[str, bytes]] | None = None

    def error(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self.text

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.carried


def refused(written: Written) -> str:
    created = list(written.created)
    with pytest.raises(UsageError) as error:
        written.start()
    # Else the next start would find one, and go on.
    assert written.created == created
    assert "./tidemark new-generation nest_cameras --reason" in error.value.remedy
    return error.value.message


def test_topic_is_made_and_noted_when_a_generation_has_written_nothing(written: Written) -> None:
    written.start()
    assert TOPIC in written.created
    assert written.generation is not None
    assert written.generation.topics == {VIEW: written.topics[TOPIC]}
    written.start()
    # Deleted before anything was written to it.
    del written.topics[TOPIC]
    written.start()
    assert written.generation.topics == {VIEW: written.topics[TOPIC]}


def test_stream_is_refused_until_a_new_generation_when_the_topic_of_a_view_is_gone(written: Written) -> None:
    written.start()
    written.views.add(VIEW)
    del written.topics[TOPIC]
    for _ in range(2):
        assert refused(written) == (f"the topic {TOPIC} is gone, and with it what the speed view {VIEW} has written")
    written.generation, written.views = StreamGeneration(PIPELINE.name, 1, {}, {}), set()
    written.start()
    assert TOPIC in written.topics


def test_stream_is_refused_when_the_topic_of_a_view_was_created_again_by_others(written: Written) -> None:
    written.start()
    written.views.add(VIEW)
    noted, written.topics[TOPIC] = written.topics[TOPIC], "another"
    assert f"the topic {TOPIC} was created again (id {noted}, now another)" in refused(written)


def test_stream_is_refused_when_the_topic_of_flags_is_compacted(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline("auction_bids")
    assert pipeline.flags is not None
    compacted = {pipeline.flags.topic}
    monkeypatch.setattr(kafka, "create_topic", lambda *_, **__: False)
    monkeypatch.setattr(kafka, "is_compacted", lambda topic: topic in compacted)
    address = SimpleNamespace(kafka_address=lambda: "broker:9092")
    monkeypatch.setattr(written_topics, "settings", lambda: address)
    with pytest.raises(UsageError, match="topic auction-flags is compacted, and would lose flags") as refused:
        create_written_topics(pipeline)
    assert "--entity-name auction-flags --add-config cleanup.policy=delete" in refused.value.remedy
    compacted.clear()
    create_written_topics(pipeline)


def test_topic_is_noted_when_its_generation_was_begun_by_code_that_did_not(written: Written) -> None:
    written.topics[TOPIC] = "as it was"
    written.generation, written.views = StreamGeneration(PIPELINE.name, 4, {}, {}), {VIEW}
    written.start()
    assert written.generation.topics == {VIEW: "as it was"}


def test_topic_is_not_said_to_be_lost_when_another_one_is_declared(written: Written) -> None:
    written.views.add(VIEW)
    facts = {VIEW: {"speed topic": "former-topic"}}
    written.generation = StreamGeneration(PIPELINE.name, 0, facts, {}, {VIEW: "id-of-former-topic"})
    check_compacted_topics(PIPELINE)
    written.topics[TOPIC] = "another"
    check_compacted_topics(PIPELINE)


@pytest.mark.services
def test_cut_and_held_back_topic_partitions_are_named_when_a_view_s_values_are_looked_for(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_topics, "_TRANSACTION_SECONDS", 0)
    view = replace(PIPELINE.views[0], speed=CompactedTopic("hidden-stats", "1h"))
    # Only of such a topic are records removed: it had this cleanup policy for a time.
    kafka.create_topic("hidden-stats", 2)
    producer = in_process.producer()
    for partition in (0, 0, 1):
        producer.produce("hidden-stats", b"{}", b"{}", partition)
    assert producer.flush(30) == 0
    assert hidden_values(view) == []
    upto = ClientTopicPartition("hidden-stats", 0, 1)
    client = kafka.admin()
    client.delete_records([upto])[upto].result(30)
    hanging = transactional_producer(in_process.kafka, "hanging-stats")
    write_transaction(hanging, "hidden-stats", [(0, b"{}", b"{}")], end="", partition=1)
    opened, cut = hidden_values(view)
    hanging.abort_transaction(30)
    assert opened.startswith("a transaction is open at offset 1 of hidden-stats-1: end the producer's transaction")
    assert cut.startswith("the records of hidden-stats-0 before offset 1 were removed: if values were among them")


VALUE = Message(b'{"count": 3, "version": 7}')
DELETION = Message(None, [("version", b"7")])
FLAG = Message(b'{"kafka_topic": "auction-bids", "limits_version": 4}')
FOREIGN = [Message(b"no JSON"), Message(b"[7]"), Message(None), Message(b'{"kafka_topic": "others"}')]


def holds(monkeypatch: pytest.MonkeyPatch, *messages: Message) -> None:
    """Let each topic's first records be these."""
    monkeypatch.setattr(written_topics, "first_messages", lambda *_: dict(enumerate(messages)))


@pytest.mark.parametrize("first", [VALUE, DELETION])
def test_first_start_is_refused_when_its_view_s_topic_has_values_already(
    written: Written, monkeypatch: pytest.MonkeyPatch, first: Message
) -> None:
    written.topics[TOPIC] = "of another"
    holds(monkeypatch, *FOREIGN)
    check_own_topics(PIPELINE)
    holds(monkeypatch, *FOREIGN, first)
    with pytest.raises(UsageError, match=f"the topic {TOPIC} has values that the view {VIEW} has not written") as error:
        check_own_topics(PIPELINE)
    assert "gone for good: ./tidemark new-generation nest_cameras" in error.value.remedy
    # Its own, not committed yet; or those that a new generation replaces.
    for number in (0, 1):
        written.generation = StreamGeneration(PIPELINE.name, number, {}, {})
        check_own_topics(PIPELINE)


@pytest.mark.parametrize("pattern", ["", "auction-bids|[A-Z].*"])
def test_stream_is_refused_when_its_flags_topic_has_flags_before_it_raised_any(
    written: Written, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    pipeline = load_pipeline("auction_bids")
    assert pipeline.flags is not None
    if pattern:
        pipeline = replace(pipeline, source=KafkaTopics(pattern=pattern))
    written.topics[pipeline.flags.topic] = "of another"
    written.generation = StreamGeneration(pipeline.name, 1, {}, {})
    runs = {pipeline.name: 0}
    monkeypatch.setattr(written_topics.flag_ledger, "last_run", runs.__getitem__)
    holds(monkeypatch, *FOREIGN)
    check_own_topics(pipeline)
    holds(monkeypatch, *FOREIGN, FLAG)
    with pytest.raises(UsageError, match="the topic auction-flags has flags that this ledger's stream has") as error:
        check_own_topics(pipeline)
    # Unlike those of views: no new generation deletes flags.
    assert "kafka-delete-records.sh" in error.value.remedy
    assert "new-generation" not in error.value.remedy
    runs[pipeline.name] = 1
    check_own_topics(pipeline)


OTHER = "2026-11-20T05:00:00.000007Z db:5432"


@pytest.fixture
def group(written: Written, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Whom the consumer group's positions name."""
    named: set[str] = set()
    began = datetime(2026, 11, 21, 5, microsecond=1, tzinfo=UTC)
    monkeypatch.setattr(written_topics, "owners_of", lambda *_: named)
    monkeypatch.setattr(written_topics, "began_first", lambda _: began if written.generation else None)
    monkeypatch.setattr(written_topics, "is_opened_by_erasures", lambda _: False)
    monkeypatch.setattr(written_topics, "settings", lambda: SimpleNamespace(database_host=lambda: "staging:5432"))
    monkeypatch.setattr(written_topics.micro_batches, "positions", lambda _: {TopicPartition("nest-logs", 0): 7})
    monkeypatch.setattr(written_topics, "topics_that_left", lambda _: frozenset())
    return named


def test_stream_is_refused_when_another_ledger_s_has_committed_to_its_group(written: Written, group: set[str]) -> None:
    check_only_ledger(PIPELINE, [])
    group.add(OTHER)
    started = StreamGeneration(PIPELINE.name, 2, {}, {VIEW: "{}"})
    for written.generation in (None, StreamGeneration(PIPELINE.name, 0, {}, {}), started):
        with pytest.raises(UsageError, match="the one at db:5432 that began it at 2026-11-20T05") as error:
            check_only_ledger(PIPELINE, [])
        assert "./tidemark new-generation nest_cameras" in error.value.remedy
    # Several may read what nobody writes.
    check_only_ledger(replace(PIPELINE, views=(), reports=()), [])


def test_way_to_take_over_names_the_flags_of_the_other_ledger_when_its_stream_raised_any(
    written: Written, group: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline("auction_bids")
    group.add(OTHER)
    for runs, is_named in ((0, True), (1, False)):
        monkeypatch.setattr(written_topics.flag_ledger, "last_run", lambda _, runs=runs: runs)
        with pytest.raises(UsageError, match="the stream of another ledger") as error:
            check_only_ledger(pipeline, [])
        assert ("kafka-delete-records.sh, of auction-flags" in error.value.remedy) == is_named


def test_stream_goes_on_when_its_own_ledger_committed_or_a_new_generation_takes_over(
    written: Written, group: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written.generation = StreamGeneration(PIPELINE.name, 2, {}, {VIEW: "{}"})
    # On another server since.
    group.add(owner_of(PIPELINE.name).replace("staging", "moved"))
    check_only_ledger(PIPELINE, [])
    group.add(OTHER)
    written.generation = StreamGeneration(PIPELINE.name, 3, {}, {})
    check_only_ledger(PIPELINE, [])
    # Of a ledger that was made anew, and that a crash kept from committing anything.
    written.generation = StreamGeneration(PIPELINE.name, 3, {}, {VIEW: "{}"})
    monkeypatch.setattr(written_topics.micro_batches, "positions", lambda _: {})
    check_only_ledger(PIPELINE, [])


def test_position_of_a_topic_that_left_names_no_other_ledger_when_this_one_took_the_rest_over(
    written: Written, group: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream of this ledger commits it any more."""
    group.add(OTHER)
    written.generation = StreamGeneration(PIPELINE.name, 3, {}, {VIEW: "{}"})
    kept, former = TopicPartition("nest-logs", 0), TopicPartition("former-logs", 0)
    monkeypatch.setattr(written_topics.micro_batches, "positions", lambda _: {kept: 7, former: 9})
    monkeypatch.setattr(written_topics, "owners_of", lambda _, asked: group if former in asked else set())
    with pytest.raises(UsageError, match="the stream of another ledger"):
        check_not_taken_over(PIPELINE)
    monkeypatch.setattr(written_topics, "topics_that_left", lambda _: frozenset({"former-logs"}))
    check_not_taken_over(PIPELINE)


@pytest.mark.parametrize(
    "way_on",
    [
        lambda: ways_on.adopt(PIPELINE, "nest-logs", reason="moved", adopted_by="me"),
        lambda: ways_on.unsubscribe(PIPELINE, "nest-logs", reason="over", left_by="me"),
        lambda: ways_on.accept_losses(PIPELINE, Lease(PIPELINE.name, 7, "here"), reason="old", accepted_by="me"),
        lambda: erase(PIPELINE, Wish(("cam-1",), ("device_id",), "asked", "me"), print),
        lambda: dry_run(PIPELINE, Wish(("cam-1",), ("device_id",), "asked", "me")),
    ],
    ids=["adopt", "unsubscribe", "accept losses", "erase", "erase, dry run"],
)
def test_generation_that_would_take_topics_over_is_opened_only_by_its_command(
    request: pytest.FixtureRequest,
    written: Written,
    group: set[str],
    monkeypatch: pytest.MonkeyPatch,
    way_on: Callable[[], object],
) -> None:
    for module in (ways_on, run):
        monkeypatch.setattr(module, "check_lake", lambda _: None, raising=False)
        monkeypatch.setattr(module, "no_stream", lambda *_: pytest.fail("it goes on"), raising=False)
    monkeypatch.setattr(ways_on, "lost_offsets", lambda _: pytest.fail("it goes on"))
    monkeypatch.setattr(run, "search", lambda *_: pytest.fail("it goes on"))
    monkeypatch.setattr(run, "await_ledger", lambda: None)
    monkeypatch.setattr(run, "check_may_delete", lambda *_: None)
    monkeypatch.setattr(run.check, "check_can_sign_proofs", lambda *_: None)
    monkeypatch.setattr(run, "left_tables", lambda _: ())
    monkeypatch.setattr(run.unfinished, "unfinished", lambda _: None)
    monkeypatch.setattr(ways_on.micro_batches, "stored_topics", lambda _: {"nest-logs": "id"})
    monkeypatch.setattr(ways_on, "topic_to_leave", lambda *_: None)
    group.add(OTHER)
    written.generation = StreamGeneration(PIPELINE.name, 2, {}, {VIEW: "{}"})
    with pytest.raises(UsageError, match="the stream of another ledger") as error:
        way_on()
    # The other ledger may be the one that is in use, and this one has to erase what it keeps.
    is_erasure = "(views, reports, flags, outputs to topics) out of the declaration here" in error.value.remedy
    assert is_erasure == (request.node.callspec.id.startswith("erase"))
    assert "only if that ledger is gone for good: ./tidemark new-generation nest_cameras" in error.value.remedy
