"""Events on their way into a topic: each is confirmed, or refused for itself, or none is written any more.

An event that Kafka may refuse only because of its time is sent again with the present one. An event that was only in
one batch with a refused one is sent again as it is. An event whose batch is too large for the topic is sent again as
a batch of its own: the topic's limit is one of batches, may be lowered at any time, and may not be readable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Producer

from include import kafka
from include.errors import TidemarkError
from include.kafka.client import ABOUT_THE_MESSAGE, unconfirmed, undelivered
from include.kafka.refusals import has_no_answer
from include.pipelines.spec import Pipeline
from include.producing.generate import PRODUCER

_MOST_TRIES = 3
"""How often an event that has the present time is sent again because Kafka refuses its timestamp."""

_MAY_BE_TOO_OLD = {KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
"""Refusals by a topic that takes only newer records than the archive's rules do. Where the broker names the refused
records of a batch, the client gives the second code for them, whatever the reason."""

_MAY_BE_THE_BATCH = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
"""Refusals of a size, which is that of the whole batch."""


def producer_of_single_events() -> Producer:
    """Return a producer that sends each message as a batch of its own."""
    return kafka.producer(**PRODUCER, **{"batch.num.messages": 1})


@dataclass(frozen=True)
class Record:
    """An event as it is written."""

    key: bytes | None
    value: bytes
    at: datetime | None
    """Timestamp; None for the time at which it is sent."""
    confirmed: Callable[[], None]
    refused: Callable[[KafkaError], None]
    """Called when Kafka takes the others, but never this one."""
    sent_again: int = 0
    """How often its present time was refused."""
    alone: bool = False
    """Whether it is sent as a batch of its own."""


@dataclass
class EventWriter:
    """Writes events through a producer. `failure` is set when Kafka does not take them."""

    pipeline: Pipeline
    topic: str
    producer: Producer
    open_single: Callable[[], Producer] = producer_of_single_events
    """Called when the first batch is too large."""
    failure: TidemarkError | None = None
    _single: Producer | None = None
    _again: deque[Record] = field(default_factory=deque)

    def write(self, record: Record) -> bool:
        """Queue an event for Kafka; return False when the producer has no room, and nothing was done."""

        def on_delivery(error: KafkaError | None, _: object) -> None:
            if error is None:
                record.confirmed()
            else:
                self._not_delivered(record, error)

        moment = record.at or datetime.now(UTC)
        milliseconds = int(moment.timestamp() * 1000)
        producer = self._opened_single() if record.alone else self.producer
        try:
            producer.produce(self.topic, record.value, record.key, timestamp=milliseconds, on_delivery=on_delivery)
        except BufferError:
            return False
        except KafkaException as error:
            # The client refuses a message, not a batch.
            self._not_delivered(replace(record, alone=True), error.args[0])
        return True

    def serve(self) -> None:
        """Take in what Kafka answered, and send again what can be."""
        for producer in self._producers():
            producer.poll(0)
        while self._again and self.failure is None and self.write(self._again[0]):
            self._again.popleft()

    def finish(self, seconds: float) -> None:
        """Wait until all events are confirmed or refused, or the time is up, or Kafka does not take them."""
        with suppress(KafkaException):
            self._flush(seconds)
            while self._again and self.failure is None:
                self.serve()
                self._flush(seconds)

    def give_up(self, error: KafkaError | None = None) -> None:
        """Note that an event was not confirmed; the first reason counts."""
        self.failure = self.failure or self._failure(error)

    def _not_delivered(self, record: Record, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._INVALID_DIFFERENT_RECORD:
            self._again.append(record)
        elif code in _MAY_BE_TOO_OLD and record.at is not None:
            self._again.append(replace(record, at=None))
        elif code == KafkaError.INVALID_TIMESTAMP and record.sent_again < _MOST_TRIES:
            # It was in a batch with an event that is too old, and Kafka's answer was for the whole batch.
            self._again.append(replace(record, sent_again=record.sent_again + 1))
        elif code in _MAY_BE_THE_BATCH and not record.alone:
            self._again.append(replace(record, alone=True))
        elif code in ABOUT_THE_MESSAGE:
            record.refused(error)
        else:
            self.give_up(error)

    def _producers(self) -> list[Producer]:
        return [self.producer, *([] if self._single is None else [self._single])]

    def _opened_single(self) -> Producer:
        if self._single is None:
            self._single = self.open_single()
        return self._single

    def _flush(self, seconds: float) -> None:
        for producer in self._producers():
            producer.flush(seconds)

    def _failure(self, error: KafkaError | None) -> TidemarkError:
        if error is None or error.code() == KafkaError._MSG_TIMED_OUT or has_no_answer(error):
            reason = error.str() if error else "no answer"
            failure: TidemarkError = unconfirmed(f"it did not confirm an event: {reason}", self.topic)
            failure.remedy += "; then start again: it goes on after the last confirmed event, nothing is lost"
        else:
            failure = undelivered(self.topic, error)
        failure.pipeline = self.pipeline.name
        return failure
