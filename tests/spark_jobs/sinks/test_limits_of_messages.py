"""How large messages and batches may be, without broker and Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from include import kafka
from include.intervals.reporting import notifications
from include.kafka import TopicLimits
from include.kafka.fenced_producer import FencedProducer
from include.ledger.archive.row_outputs import Unsent
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, KafkaMessages, KafkaTopic, Rows
from spark_jobs.outputs.topic import TopicTarget
from spark_jobs.sinks import speed_view

TAKEN = {"wide": "5000000", "narrow": "1048588", "endless": "2147483647", "least": "262144"}


def view(topic: str, *others: str) -> AdditiveView:
    of = load_pipeline("nest_cameras").views[0]
    sinks = tuple(KafkaMessages(topic=other) for other in others)
    return replace(of, speed=replace(of.speed, topic=topic), sinks=sinks)


@pytest.mark.parametrize(
    ("topics", "options"),
    [
        (("narrow",), {"message.max.bytes": "1048588", "batch.size": "1000000"}),
        (("narrow", "wide"), {"message.max.bytes": "5000000", "batch.size": "1000000"}),
        # Topics limit batches after their compression.
        (("least",), {"message.max.bytes": "1000000", "batch.size": "262144"}),
        (("wide", "least"), {"message.max.bytes": "5000000", "batch.size": "262144"}),
        # The most that the client takes.
        (("endless", "wide"), {"message.max.bytes": "1000000000", "batch.size": "1000000"}),
        # Their settings must not be read.
        (("closed", "hidden"), {}),
        (("closed", "wide"), {"message.max.bytes": "5000000", "batch.size": "1000000"}),
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


def limits_of(topic: str, _: int = 0) -> TopicLimits:
    taken = int(TAKEN[topic])
    return TopicLimits(taken - 1024, is_compacted=False, batch=min(1_000_000, taken))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, {"batch.size": "262144"}), ({"kafka.batch.size": "5000"}, {"batch.size": "5000"})],
)
def test_output_s_batches_are_as_large_as_each_of_its_topics_takes(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: dict[str, str]
) -> None:
    used: list[dict[str, str]] = []

    def write(sender: FencedProducer, messages: object) -> int:
        used.append(dict(sender.options))
        return 0

    monkeypatch.setattr(kafka, "topic_limits", limits_of)
    monkeypatch.setattr(FencedProducer, "write", write)
    to = KafkaTopic(row_topics=("wide", "least"), options=options)
    nothing: Any = None
    TopicTarget(load_pipeline("isp_hits"), Rows("r", to=to), to, nothing).send(nothing, Unsent(1, (), {}, 1))
    assert used == [expected]


def test_notifications_batches_are_as_large_as_their_topic_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, Any]] = []

    class Sender:
        def produce(self, *_: object, **__: object) -> None: ...

        def poll(self, _: float) -> None: ...

        def flush(self, _: float) -> int:
            return 0

    def producer(**options: Any) -> Sender:
        used.append(options)
        return Sender()

    monkeypatch.setattr(kafka, "topic_limits", limits_of)
    monkeypatch.setattr("include.kafka.client.producer", producer)
    assert notifications._send("least", [("key", {"id": "1"})]) == 1
    assert [options["batch.size"] for options in used] == [262144]
