"""Where the first stream begins is declared once, and by offsets that can be read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines.spec import KafkaTopics


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"starting_offsets": "erliest"}, "starting_offsets='erliest' is not known"),
        ({"starting_offsets": 5}, "starting_offsets=5 is not known — write"),
        ({"starting_offsets": {"t": 5}}, "starting_offsets has 5 for the topic t — write"),
        ({"starting_offsets": {"t": {0: -1}}}, "starting_offsets has -1 for t-0"),
        ({"starting_offsets": {"t": {0: "7"}}}, "starting_offsets has '7' for t-0"),
        ({"starting_offsets": {"t": {-1: 0}}}, "starting_offsets has 0 for t--1"),
        ({"starting_offsets": {"other": {0: 1}}}, "the topic 'other', which the source does not read (t)"),
        ({"subscribe": (), "assign": {"t": (1,)}, "starting_offsets": {"t": {0: 1}}}, "t-0, which the source does not"),
        ({"subscribe": (), "pattern": "t.", "starting_offsets": {"t": {0: 1}}}, "the topic 't', which the source"),
        ({"starting_offsets": "latest", "starting_time": "2026-11-20T05:00:00Z"}, "both starting_offsets and starting"),
        ({"starting_offsets": {"t": {0: 1}}, "starting_time": "2026-11-20T05:00:00Z"}, "both starting_offsets and"),
    ],
)
def test_start_is_refused_when_it_cannot_be_meant(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        KafkaTopics(**{"subscribe": ("t",), **declared})


@pytest.mark.parametrize(
    "declared",
    [
        {"starting_offsets": "latest"},
        {"starting_offsets": {"t": {0: 0, 3: 12}}},
        {"starting_time": "2026-11-20T05:00:00Z"},
        {"subscribe": (), "pattern": "t.*", "starting_offsets": {"t2": {0: 1}}},
        {"subscribe": (), "assign": {"t": (0, 1)}, "starting_offsets": {"t": {1: 5}}},
    ],
)
def test_start_is_accepted_when_the_source_can_begin_there(declared: dict[str, Any]) -> None:
    source = KafkaTopics(**{"subscribe": ("t",), **declared})
    assert source.starting_offsets == declared.get("starting_offsets", "earliest")


@pytest.mark.parametrize(
    ("topic", "is_read"), [("doors", True), ("_doors", True), ("__doors", False), ("a__doors", True)]
)
def test_topic_is_not_the_pattern_s_when_its_name_begins_like_kafka_s_own(topic: str, is_read: bool) -> None:
    assert KafkaTopics(pattern=".*doors").reads(topic) is is_read
    assert KafkaTopics(subscribe=(topic,)).reads(topic)
