"""Writes generated messages to a pipeline's topic; every message's Kafka timestamp is its event time."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from tenacity import Retrying, stop_never, wait_none

from include import kafka
from include.errors import ServiceUnreachable, UsageError
from include.pipelines.spec import Avro, Pipeline
from include.producing.broken_messages import broken_avro
from include.settings import settings
from include.times import format_time


@dataclass
class Produced:
    """What a run of `produce` wrote."""

    pipeline: str
    topic: str
    delivered: int
    bad: int
    first: str
    last: str
    offsets: dict[str, int]
    """Records written per topic partition number."""


def broken_forms(value: bytes, max_bytes: int, rng: random.Random) -> list[tuple[str, bytes | None]]:
    """Ways in which any JSON message can be broken in its form: reason and value."""
    return [
        ("null_value", None),
        ("empty_value", b""),
        ("empty_value", b"  \n"),
        ("malformed_json", value[: rng.randint(1, len(value) - 1)]),
        ("malformed_json", b"not json at all"),
        ("malformed_json", value.replace(b'"', b"'")),
        ("trailing_content", value + value),
        ("trailing_content", value + b"," + value),
        ("trailing_content", value + b" and so on"),
        ("trailing_content", value + b"}"),
        ("not_utf8", value.replace(b'"', b'"\xff\xfe', 1)),
        ("wrong_type", b"[1, 2, 3]"),
        ("wrong_type", b"null"),
        ("too_large", b'{"metadata": "' + b"x" * max_bytes + b'"}'),
    ]


def messages(
    pipeline: Pipeline, *, events: int, seed: int, bad_fraction: float, start: datetime, span: timedelta
) -> Iterator[tuple[datetime, bytes | None, bytes | None, str]]:
    """Time, key, value and the reason it is bad for (empty when good), in the order of their times.

    The same arguments give the same messages; a generator that has to `connect` first (to a schema registry)
    may raise ServiceUnreachable.
    """
    generator = _generator(pipeline)
    rng = random.Random(f"{pipeline.name}:{seed}")
    for number in range(events):
        moment = start + span * number / max(events, 1)
        key, value = generator.message(moment, rng)
        if rng.random() >= bad_fraction:
            yield moment, key, value, ""
            continue
        # A too large value every now and then only: a thousand of them would be a gigabyte.
        broken_in_form = broken_avro if isinstance(pipeline.decoder, Avro) else broken_forms
        forms = broken_in_form(value, pipeline.decoder.max_bytes, rng)
        choices = [*forms[: -1 if rng.random() > 0.02 else None], *generator.bad_messages(moment, rng)]
        reason, broken = rng.choice(choices)
        yield moment, key, broken, reason


def _generator(pipeline: Pipeline) -> Any:
    module = importlib.import_module(f"include.producing.messages.{pipeline.name}")
    return module.connect() if hasattr(module, "connect") else module


def produce(
    pipeline: Pipeline,
    *,
    events: int,
    seed: int = 1,
    rate: float | None = None,
    bad_fraction: float = 0.0,
    start: datetime | None = None,
    span: timedelta = timedelta(hours=3),
    topic: str = "",
) -> dict[str, Any]:
    """Write `events` messages, event times spread in order over `span` from `start` (default: ending now).

    `topic`: one of the pipeline's (default: the first that it names).
    Returns `Produced` as a dictionary once the broker has confirmed every message; the topic is created
    if missing. Raises ServiceUnreachable when it does not answer.
    """
    start = start or datetime.now(UTC) - span
    topic = topic or _first_topic(pipeline)
    kafka.create_topic(topic, pipeline.source.topic_partitions)
    written: Counter[str] = Counter()
    refused: list[KafkaError] = []
    bad = 0

    def confirmed(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)
        else:
            written[str(message.partition())] += 1

    producer = kafka.producer(**{"linger.ms": 20, "message.max.bytes": 4_000_000})
    pace = Pace(rate)
    moment = start
    for moment, key, value, reason in messages(
        pipeline, events=events, seed=seed, bad_fraction=bad_fraction, start=start, span=span
    ):
        bad += bool(reason)
        pace.wait(producer)
        milliseconds = int(moment.timestamp() * 1000)
        for attempt in Retrying(stop=stop_never, wait=wait_none()):
            with attempt:
                _enqueue(producer, topic, key, value, milliseconds, confirmed)
    producer.flush(90)
    if refused or sum(written.values()) != events:
        reason = refused[0].str() if refused else "no confirmation"
        raise ServiceUnreachable(
            f"Kafka at {settings().kafka_address()} confirmed {sum(written.values())} of {events} messages: {reason}",
            remedy="./tidemark status",
        )
    first, last = format_time(start), format_time(moment)
    return asdict(Produced(pipeline.name, topic, events, bad, first, last, dict(sorted(written.items()))))


def _first_topic(pipeline: Pipeline) -> str:
    if not pipeline.source.named:
        raise UsageError(
            f"it reads topics like {pipeline.source.pattern!r}", remedy="--topic names one", pipeline=pipeline.name
        )
    return pipeline.source.named[0]


def _enqueue(
    producer: Producer, topic: str, key: bytes | None, value: bytes | None, milliseconds: int, confirmed: Any
) -> None:
    try:
        producer.produce(topic, value, key, timestamp=milliseconds, on_delivery=confirmed)
    except BufferError:
        # The client's queue is full: serving it makes room, and the caller tries again.
        producer.poll(0.5)
        raise
    producer.poll(0)


class Pace:
    """Keeps a rate of messages per second; without one it does not wait."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._begun = datetime.now(UTC)
        self._sent = 0

    def wait(self, producer: Producer) -> None:
        """Wait, serving the producer, until the next message is due."""
        if self._rate:
            due = self._begun + timedelta(seconds=self._sent / self._rate)
            while (left := (due - datetime.now(UTC)).total_seconds()) > 0:
                producer.poll(left)
        self._sent += 1
