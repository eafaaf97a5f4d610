"""What is asked of Kafka outside Spark: topics and their ids, offsets, and values of compacted topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from include.errors import ServiceUnreachable
from include.settings import settings

TIMEOUT = 10.0
"""Seconds until a broker that does not answer counts as unreachable."""

_REFUSED_WITHIN = 3.0
"""Seconds in which a broker that refuses a connection does so."""

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
    """Connection errors reach the caller through the call that needed the connection."""


def _refusal() -> str:
    """Why the broker does not let us in, where it is asked for user, password or certificate; empty otherwise.

    The client tells that in passing only: a call just gets no answer. So a connection is made for it.
    """
    options = settings().kafka_client_options()
    if options.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
        return ""
    told: list[KafkaError] = []
    probe = AdminClient({**options, "error_cb": told.append, "log_level": 0})
    deadline = time.monotonic() + _REFUSED_WITHIN
    while time.monotonic() < deadline:
        probe.poll(0.2)
        for error in told:
            if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                # `address: what: why (after so many ms …)`
                return str(error.str()).split(": ", 1)[-1].split(" (after", 1)[0]
    return ""


def few_records(fetch_bytes: int = 64 * 1024) -> dict[str, str | bool | int]:
    """Options of a consumer that is after a few records: it does not read ahead, and sees a partition's end.

    The client would fill its queue with what lies behind them, and pause for a second whenever that is full.
    """
    return {
        "enable.partition.eof": True,
        "max.partition.fetch.bytes": fetch_bytes,
        "queued.min.messages": 1,
        "fetch.queue.backoff.ms": 1,
    }


def admin() -> AdminClient:
    """An admin client of the configured cluster."""
    return AdminClient({**settings().kafka_client_options(), "error_cb": _quiet, "log_level": 0})


def consumer(**options: Any) -> Consumer:
    """A read_committed consumer without a group's offsets; the caller assigns and closes it."""
    defaults: dict[str, Any] = {
        "group.id": "tidemark-reader",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    return Consumer({**settings().kafka_client_options(), **defaults, **options, "error_cb": _quiet})


def producer(**options: str | bool | int) -> Producer:
    """An idempotent producer; the caller flushes it."""
    defaults: dict[str, str | bool | int] = {
        "enable.idempotence": True,
        "compression.type": "lz4",
        "message.timeout.ms": 60_000,
        "log_level": 0,
    }
    return Producer({**settings().kafka_client_options(), **defaults, **options, "error_cb": _quiet})


def send(topic: str, messages: Iterable[tuple[bytes, bytes]]) -> int:
    """Write keys and values to a topic; how many, once the broker has confirmed all. Raises ServiceUnreachable."""
    refused: list[KafkaError] = []
    sender = producer()
    count = 0
    for key, value in messages:
        sender.produce(topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
        sender.poll(0)
        count += 1
    if sender.flush(90) or refused:
        raise _unreachable(refused[0].str() if refused else f"not every message to {topic} was confirmed")
    return count
