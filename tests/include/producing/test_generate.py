"""Generated messages without services: when the topic is created."""

from __future__ import annotations

from typing import Any

import pytest

from include import kafka
from include.errors import ServiceUnreachable
from include.pipelines import load_pipeline
from include.producing import generate


def test_topic_is_not_created_when_no_message_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(pipeline: Any) -> None:
        raise ServiceUnreachable("the schema registry does not answer")

    created: list[str] = []
    monkeypatch.setattr(generate, "_generator", unreachable)
    monkeypatch.setattr(kafka, "create_topic", lambda topic, partitions: created.append(topic))
    monkeypatch.setattr(kafka, "producer", lambda **_: pytest.fail("nothing is written"))
    with pytest.raises(ServiceUnreachable, match="schema registry"):
        generate.produce(load_pipeline("gps_positions"), events=3)
    assert created == []
