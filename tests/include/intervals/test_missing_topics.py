"""What a source without its topic means: lost offsets where it was read before, a wrong command where it never was."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from include import kafka
from include.errors import OffsetsLost, TidemarkError, UsageError
from include.intervals import boundaries
from include.kafka import sources
from include.ledger.intervals.pins import PinnedInterval
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from tests.support.topic_log import hour

WIKI = load_pipeline("wiki_changes")
(TOPIC,) = WIKI.source.subscribe
PINNED = PinnedInterval(1, WIKI.name, hour(0), (), {TOPIC: "id"})


@pytest.mark.parametrize("pattern", ["", "wiki-changes.*"])
@pytest.mark.parametrize(
    ("stored", "last", "expected"),
    [({}, None, UsageError), ({TOPIC: "id"}, None, OffsetsLost), ({}, PINNED, OffsetsLost)],
)
def test_offsets_are_lost_only_when_the_missing_topic_was_read_or_pinned(
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    stored: dict[str, str],
    last: PinnedInterval | None,
    expected: type[TidemarkError],
) -> None:
    monkeypatch.setattr(boundaries, "describe_source", lambda _: {})
    monkeypatch.setattr(kafka, "describe_topics", lambda _: {})
    monkeypatch.setattr(sources, "settings", lambda: SimpleNamespace(kafka_address=lambda: "broker:9092"))
    monkeypatch.setattr(boundaries, "stored_topics", lambda _: stored)
    monkeypatch.setattr(boundaries, "positions", lambda _: {})
    monkeypatch.setattr(boundaries, "topics_that_left", lambda _: frozenset())
    monkeypatch.setattr(boundaries.lines, "sources_of", lambda _: [])
    monkeypatch.setattr(boundaries.pins, "last_interval", lambda _: last)
    pipeline = replace(WIKI, source=KafkaTopics(pattern=pattern)) if pattern else WIKI
    words = "no longer exists" if stored else "no topic matches" if pattern else f"topic {TOPIC} does not exist"
    with pytest.raises(expected, match=words) as refused:
        boundaries.read_log(pipeline)
    assert refused.value.remedy
