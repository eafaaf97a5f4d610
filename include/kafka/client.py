"""Clients of the configured cluster: admin, consumer and producer, and their errors as Tidemark's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from include.errors import ServiceUnreachable, UsageError
from include.settings import settings

_Client = TypeVar("_Client")

TIMEOUT = 10.0
"""Seconds after which a broker that does not answer counts as unreachable."""

_REFUSED_WITHIN = 3.0
"""Seconds within which a broker refuses a connection, if it does."""

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._AUTHENTICATION,
}


@contextmanager
def reaching_kafka() -> Iterator[None]:
    """Turn the client's errors into ServiceUnreachable, with the address and what to do."""
    try:
        yield
    except KafkaException as error:
        kafka_error = error.args[0]
        if isinstance(kafka_error, KafkaError) and kafka_error.code() in _UNREACHABLE:
            raise _unreachable(kafka_error.str()) from error
        raise
    except TimeoutError as error:
        raise _unreachable(f"no answer within {TIMEOUT:.0f} s") from error


def _unreachable(reason: str) -> ServiceUnreachable:
    if refusal := _refusal():
        return ServiceUnreachable(
            f"Kafka at {settings().kafka_address()} refuses us: {refusal}",
            remedy="user, password and certificate in the file that TIDEMARK_KAFKA_PROPERTIES names",
        )
    return ServiceUnreachable(
        f"Kafka at {settings().kafka_address()}: {reason}", remedy="./tidemark status; ./tidemark up kafka"
    )


def _quiet(_: KafkaError) -> None:
    """Ignore a connection error: the call that needed the connection reports it."""


def _refusal() -> str:
    """Return why the broker refuses user, password or certificate; empty when it does not.

    The client reports a refusal only to its error callback, while calls time out. So this opens a connection to ask.
    """
    options = settings().kafka_client_options()
    if options.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
        return ""
    reported: list[KafkaError] = []
    probe = AdminClient({**options, "error_cb": reported.append, "log_level": 0})
    deadline = time.monotonic() + _REFUSED_WITHIN
    while time.monotonic() < deadline:
        probe.poll(0.2)
        for error in reported:
            if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                # `address: what: why (after so many ms …)`
                return str(error.str()).split(": ", 1)[-1].split(" (after", 1)[0]
    return ""


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
        "group.id": "tidemark-reader",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    return _made(Consumer, {**defaults, **options})


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


def send(topic: str, messages: Iterable[tuple[bytes, bytes]]) -> int:
    """Write keys and values to a topic and return how many, once the broker has confirmed all.

    Raises ServiceUnreachable.
    """
    refused: list[KafkaError] = []
    sender = producer()
    count = 0
    for key, value in messages:
        enqueue(sender, topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
        count += 1
    if sender.flush(90) or refused:
        raise _unreachable(refused[0].str() if refused else f"not every message to {topic} was confirmed")
    return count
