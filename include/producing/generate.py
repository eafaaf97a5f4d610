"""Write generated messages to a pipeline's topic, each with its event time as Kafka timestamp."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from types import ModuleType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from include import kafka
from include.errors import UsageError
from include.kafka.client import unconfirmed, undelivered
from include.pipelines.spec import Avro, Pipeline
from include.producing.broken_messages import broken_avro, broken_json
from include.producing.messages import file_of, module_of
from include.times import format_time

_PROGRESS_EVERY = 100
"""Messages."""

PRODUCER: Mapping[str, Any] = {"linger.ms": 20, "message.max.bytes": 1_000_000_000}
"""Options of producers that write many messages; a batch is as large as the topic takes.

The client has no limit of its own: it would count a message before it is compressed, the topic counts it afterwards."""

_EARLIEST = datetime.fromtimestamp(0.001, UTC)
"""Kafka's client takes timestamp 0 for the present time."""


@dataclass
class Produced:
    """Summary of what a run of `produce` wrote."""

    pipeline: str
    topic: str
    delivered: int
    bad: int
    first: str
    last: str
    offsets: dict[str, int]
    """Number of records written, by topic partition number."""


def messages(
    pipeline: Pipeline, *, events: int, seed: int, bad_fraction: float, start: datetime, span: timedelta
) -> Iterator[tuple[datetime, bytes | None, bytes | None, str]]:
    """Yield messages as (time, key, value, reason) in order of time; the reason is empty for a valid message.

    The same arguments give the same messages. Raise ServiceUnreachable when the generator needs a schema registry
    that does not answer, UsageError when there is no generator.
    """
    generator = _generator(pipeline)
    rng = random.Random(f"{pipeline.name}:{seed}")
    for number in range(events):
        moment = start + span * number / max(events, 1)
        key, value = generator.message(moment, rng)
        if rng.random() >= bad_fraction:
            yield moment, key, value, ""
            continue
        # Too large values are rare: a thousand of them would be a gigabyte.
        malformed = broken_avro if isinstance(pipeline.decoder, Avro) else broken_json
        variants = malformed(value, pipeline.decoder.max_bytes, rng)
        choices = [*variants[: -1 if rng.random() > 0.02 else None], *generator.bad_messages(moment, rng)]
        reason, broken = rng.choice(choices)
        yield moment, key, broken, reason


def check_producible(pipeline: Pipeline, topic: str = "") -> None:
    """Raise UsageError when the pipeline has no complete generator, or a topic must be named and is not."""
    _generator_module(pipeline)
    topic_of(pipeline, topic)


def _generator(pipeline: Pipeline) -> Any:
    module = _generator_module(pipeline)
    return module.connect() if hasattr(module, "connect") else module


def _generator_module(pipeline: Pipeline) -> ModuleType:
    module = module_of(pipeline)
    missing = next((name for name in ("message", "bad_messages") if not hasattr(module, name)), "")
    if module is None or (missing and not hasattr(module, "connect")):
        raise UsageError(
            f"{file_of(pipeline)} {f'has no function {missing}' if module else 'is not there'}",
            remedy="write it with message(moment, rng) and bad_messages(moment, rng), or send records by other means",
            pipeline=pipeline.name,
        )
    return module


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
    enqueued: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """Write `events` messages and return `Produced` as a dictionary once the broker has confirmed each of them.

    Event times are spread in order over `span` from `start`; by default the span ends now. `topic` is one of the
    pipeline's, by default the first that it names; it is created if missing. `rate` is in messages per second.
    `enqueued` is called now and then with the number of messages queued so far.
    Raise ServiceUnreachable when Kafka does not confirm every message, TidemarkError when it refuses one, UsageError
    when a topic must be named, a time lies before 1970 or beyond the year 9999, or the pipeline has no generator.
    """
    start = start or datetime.now(UTC) - span
    if start < _EARLIEST:
        raise UsageError(
            f"the first event time is {format_time(start)}, and none may be before 1970-01-01T00:00:00.001Z",
            remedy="a later --start or a shorter --span",
        )
    if span > datetime.max.replace(tzinfo=UTC) - start:
        raise UsageError(f"{format_time(start)} and the span end after the year 9999", remedy="an earlier --start")
    topic = topic_of(pipeline, topic)
    generated = messages(pipeline, events=events, seed=seed, bad_fraction=bad_fraction, start=start, span=span)
    # Before the topic is created: without a schema registry, for example, there may be no message to write.
    begin = list(islice(generated, 1))
    kafka.create_topic(topic, pipeline.source.topic_partitions)
    written: Counter[str] = Counter()
    refused: list[KafkaError] = []
    bad = 0

    def count_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)
        else:
            written[str(message.partition())] += 1

    # A batch that a topic finds too large is refused with all of its messages.
    batch = kafka.topic_limits(topic).batch
    producer = kafka.producer(**PRODUCER, **{"batch.size": batch})
    pace = Pace(rate)
    moment = start
    for number, (moment, key, value, reason) in enumerate(chain(begin, generated)):
        if number % _PROGRESS_EVERY == 0:
            enqueued(number)
        bad += bool(reason)
        pace.wait(producer)
        milliseconds = int(moment.timestamp() * 1000)
        try:
            kafka.enqueue(producer, topic, value, key, timestamp=milliseconds, on_delivery=count_delivery)
        except KafkaException as error:
            refused.append(error.args[0])
            break
    producer.flush(90)
    confirmed = sum(written.values())
    if refused or confirmed != events:
        failure = undelivered(topic, refused[0]) if refused else unconfirmed("no confirmation", topic)
        failure.message += f"; {confirmed} of {events} messages were confirmed"
        failure.pipeline = pipeline.name
        raise failure
    first, last = format_time(start), format_time(moment)
    return asdict(Produced(pipeline.name, topic, events, bad, first, last, dict(sorted(written.items()))))


def topic_of(pipeline: Pipeline, topic: str = "") -> str:
    """Return the topic that is given, or the first that the pipeline names. Raise UsageError when it names none."""
    if not (topic or pipeline.source.named):
        raise UsageError(
            f"the pipeline reads topics that match {pipeline.source.pattern!r}",
            remedy="name one with --topic",
            pipeline=pipeline.name,
        )
    return topic or pipeline.source.named[0]


class Pace:
    """Limits messages to a rate per second; does not wait when the rate is None."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._begun = time.monotonic()
        self._sent = 0

    def wait(self, producer: Producer) -> None:
        """Poll the producer until the next message is due."""
        if self._rate:
            due = self._begun + self._sent / self._rate
            while (left := due - time.monotonic()) > 0:
                producer.poll(left)
        self._sent += 1
