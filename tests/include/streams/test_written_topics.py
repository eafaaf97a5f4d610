"""The compacted topic of a speed view: made for a generation that has written nothing, refused when it was lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from include import kafka
from include.errors import UsageError
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration
from include.offsets import TopicIdentity
from include.pipelines import load_pipeline
from include.streams import written_topics
from include.streams.written_topics import check_compacted_topics, create_written_topics, note_compacted_topics

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
        note_compacted_topics(PIPELINE, self.generation)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    found = Written()
    monkeypatch.setattr(kafka, "describe_topics", found.describe)
    monkeypatch.setattr(kafka, "create_topic", found.create)
    monkeypatch.setattr(generations, "current", lambda _: found.generation)
    monkeypatch.setattr(generations, "has_written", lambda _, view: view in found.views)
    monkeypatch.setattr(generations, "note_topics", found.note)
    return found


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
