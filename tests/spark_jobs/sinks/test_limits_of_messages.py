"""How large a message of a speed view may be, without broker and Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer

from include import kafka
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, KafkaMessages
from spark_jobs.sinks import speed_view

TAKEN = {"wide": "5000000", "narrow": "1048588", "endless": "2147483647", "least": "262144"}


def view(topic: str, *others: str) -> AdditiveView:
    of = load_pipeline("nest_cameras").views[0]
    sinks = tuple(KafkaMessages(topic=other) for other in others)
    return replace(of, speed=replace(of.speed, topic=topic), sinks=sinks)


@pytest.mark.parametrize(
    ("topics", "options"),
    [
        (("narrow",), {"message.max.bytes": "1048588"}),
        (("narrow", "wide"), {"message.max.bytes": "5000000"}),
        # Topics limit batches after their compression.
        (("least",), {"message.max.bytes": "1000000"}),
        # The most that the client takes.
        (("endless", "wide"), {"message.max.bytes": "1000000000"}),
        # Their settings must not be read.
        (("closed", "hidden"), {}),
        (("closed", "wide"), {"message.max.bytes": "5000000"}),
    ],
)
def test_client_sends_what_the_view_s_topics_take(
    monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...], options: dict[str, str]
) -> None:
    monkeypatch.setattr(
        kafka, "topic_config", lambda topic: {"max.message.bytes": TAKEN[topic]} if topic in TAKEN else {}
    )
    assert speed_view._client_limits(view(*topics)) == options
    # The client takes them.
    Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **options})
