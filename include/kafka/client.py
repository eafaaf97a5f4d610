"""Clients of the configured cluster: admin, consumer and producer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from include.errors import MessageRefused, RequestRefused, ServiceUnreachable, TidemarkError, UsageError
from include.kafka.refusals import READER, TIMEOUT, not_reached, unreachable_error
from include.offsets import TopicPartition
from include.settings import settings

_Client = TypeVar("_Client")

CLIENT_LIMIT = 1_000_000
"""Bytes of a message that a producer sends where its option `message.max.bytes` is not set."""

BATCH_SIZE = 1_000_000
"""Bytes of the messages that a producer sends as one batch where its option `batch.size` is not set."""

ABOUT_THE_MESSAGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD}
"""Refusals of a message that others do not share."""

_NAMED = 3
"""How many topics and topic partitions an error names."""

_STATISTICS_MS = 1000
"""How often a client tells how far it has fetched."""

_NO_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}


def _quiet(_: KafkaError) -> None:
    """Ignore a connection error: the call that needed the connection reports it."""


def few_records(fetch_bytes: int = 64 * 1024) -> dict[str, str | bool | int]:
    """Return options of a consumer that reads a few records: it does not read ahead and sees a partition's end.

    By default the client fills a queue with the records that follow, and pauses for a second when it is full.
    """
    return {
        "enable.partition.eof": True,
        "max.partition.fetch.bytes": fetch_bytes,
        "queued.min.messages": 1,
        "fetch.queue.backoff.ms": 1,
    }


_kept: ContextVar[dict[str, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_clients() -> Iterator[None]:
    """Let queries of the cluster in this block share their clients, for repeated queries; else each makes its own."""
    kept: dict[str, Any] = {}
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        for each in kept.values():
            if isinstance(each, Consumer):
                each.close()


def _made(kind: Callable[[dict[str, Any]], _Client], options: Mapping[str, Any]) -> _Client:
    """Return a client of the configured cluster. Raises UsageError for an option that librdkafka does not know."""
    try:
        return kind({**settings().kafka_client_options(), **options, "error_cb": _quiet})
    except KafkaException as error:
        said = error.args[0]
        if not isinstance(said, KafkaError) or said.code() != KafkaError._INVALID_ARG or _takes_settings():
            raise
        raise UsageError(
            f"TIDEMARK_KAFKA_PROPERTIES: {said.str()}", remedy="write options that both of Kafka's clients know"
        ) from None


def _takes_settings() -> bool:
    """Return whether librdkafka takes the options of the settings; then one of the caller's is wrong."""
    try:
        AdminClient({**settings().kafka_client_options(), "error_cb": _quiet, "log_level": 0})
    except KafkaException:
        return False
    return True


def admin() -> AdminClient:
    """Return an admin client of the configured cluster; the shared one inside `kept_clients`."""
    kept = _kept.get()
    if kept is not None and "admin" in kept:
        return cast(AdminClient, kept["admin"])
    made = _made(AdminClient, {"log_level": 0})
    if kept is not None:
        kept["admin"] = made
    return made


@contextmanager
def asking(isolation: str) -> Iterator[Consumer]:
    """Yield a consumer without assignment, to ask for offsets; the shared one inside `kept_clients`."""
    kept = _kept.get()
    reader = (kept or {}).get(isolation) or consumer(**{"isolation.level": isolation})
    if kept is not None:
        kept[isolation] = reader
    try:
        yield reader
    finally:
        if kept is None:
            reader.close()


def consumer(**options: Any) -> Consumer:
    """Return a read_committed consumer that belongs to no group; the caller assigns and closes it."""
    defaults: dict[str, Any] = {
        "group.id": READER,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    return _made(Consumer, {**defaults, **options})


class Progress:
    """How far a consumer has fetched, by the client's statistics.

    Records of aborted transactions are fetched and left out: hours of them give no message, though the broker answers.
    """

    def __init__(self) -> None:
        self.next_offsets: dict[TopicPartition, int] = {}
        """The offset that is fetched next, of each topic partition of which the statistics have told."""
        self.moves = 0
        """How often another one was told than before."""

    def options(self) -> dict[str, Any]:
        """Return the options of the consumer that is looked at. The callback is served where it is polled."""
        return {"statistics.interval.ms": _STATISTICS_MS, "stats_cb": self._note}

    def _note(self, statistics: str) -> None:
        for topic, told in json.loads(statistics)["topics"].items():
            for each in told["partitions"].values():
                tp, offset = TopicPartition(topic, each["partition"]), each["next_offset"]
                self.moves += self.next_offsets.get(tp, offset) != offset
                self.next_offsets[tp] = offset


def next_message(reader: Consumer, patience: float, progress: Progress | None = None) -> Message | None:
    """Return the next message, or event of a topic partition, of an assigned consumer; None after so many seconds.

    With `progress`, of the consumer, they are seconds in which it fetched nothing either.
    The client looks up the group's coordinator though nothing is committed, and reports a refusal as an event without
    a topic. It says nothing about what is read.
    """
    while True:
        moves = progress.moves if progress else 0
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            message = reader.poll(left)
            if message is not None and message.topic() is not None:
                return message
        if progress is None or progress.moves == moves:
            return None


def producer(**options: Any) -> Producer:
    """Return an idempotent producer; the caller flushes it."""
    defaults: dict[str, Any] = {
        "enable.idempotence": True,
        "compression.type": "lz4",
        "message.timeout.ms": 60_000,
        "log_level": 0,
    }
    return _made(Producer, {**defaults, **options})


def enqueue(sender: Producer, topic: str, value: bytes | None, key: bytes | None, **options: Any) -> None:
    """Queue a message; while the client's queue is full, wait until it has confirmed or given up some of its messages.

    `options` are those of confluent-kafka's `produce`. Raises KafkaException when the client refuses the message.
    """
    while True:
        try:
            sender.produce(topic, value, key, **options)
        except BufferError:
            # Not for ever: `message.timeout.ms` ends every message, and polling makes room.
            sender.poll(0.5)
            continue
        sender.poll(0)
        return


def send(topic: str, messages: Iterable[tuple[bytes, bytes]], batch_size: int = BATCH_SIZE) -> int:
    """Write keys and values to a topic and return how many, once the broker has confirmed all.

    A batch has at most `batch_size` bytes, unless it is a single message.

    Raises ServiceUnreachable, MessageRefused for a message that they do not take, and TidemarkError for other refusals.
    """
    refused: list[KafkaError] = []
    sender = producer(**{"batch.size": batch_size})
    count = 0
    for key, value in messages:
        try:
            enqueue(sender, topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
        except KafkaException as error:
            refused.append(error.args[0])
            break
        count += 1
    waiting = sender.flush(90)
    if refused:
        raise undelivered(topic, refused[0])
    if waiting:
        raise unconfirmed("it did not confirm every message", topic)
    return count


def unconfirmed(reason: str, *topics: str) -> ServiceUnreachable:
    """Return the error for messages to topics, the most telling first, that were not confirmed in time.

    The client sends them again and again, and reports no refusal that may pass. So this asks whether brokers answer.
    """
    try:
        known = admin().list_topics(timeout=TIMEOUT).topics
    except KafkaException:
        return not_reached(reason)
    named = list(dict.fromkeys(topics))
    lacking = [
        f"{TopicPartition(topic, each.id)} has "
        + (f"{len(each.isrs)} of {len(each.replicas)} replicas in sync" if each.leader >= 0 else "no leader")
        for topic in named
        if topic in known
        for each in known[topic].partitions.values()
        if each.leader < 0 or len(each.isrs) < len(each.replicas)
    ]
    told = "; ".join([reason, *lacking[:_NAMED]])
    return RequestRefused(
        f"Kafka at {settings().kafka_address()} answers, but takes no messages for {', '.join(named[:_NAMED])} in "
        f"time: {told}",
        remedy="has each topic partition a leader that is reached from here, and as many replicas in sync as the "
        "topic's min.insync.replicas asks for? Start the brokers that are missing; else: the brokers' logs",
    )


def undelivered(topic: str, refused: KafkaError) -> TidemarkError:
    """Return the error for a message that was not delivered."""
    if refused.code() == KafkaError._MSG_TIMED_OUT:
        return unconfirmed(refused.str(), topic)
    if unreachable := unreachable_error(refused, topic):
        return unreachable
    if refused.code() in _NO_TOPIC:
        return TidemarkError(f"there is no topic {topic} any more: {refused.str()}", remedy="create it and start again")
    kind = MessageRefused if refused.code() in ABOUT_THE_MESSAGE else TidemarkError
    return kind(f"Kafka refuses a message for the topic {topic}: {refused.str()}", remedy="see the topic's settings")
