"""Refusals of the brokers and their silence, as Tidemark's errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from include.errors import RequestRefused, ServiceUnreachable
from include.settings import settings

_Answer = TypeVar("_Answer")

TIMEOUT = 10.0
"""Seconds after which a broker that does not answer counts as unreachable."""

_AGAIN_AFTER = 0.2
"""Seconds between an answer that passes and the next question."""

_REFUSED_WITHIN = 3.0
"""Seconds within which a broker refuses a connection, if it does."""

_NAMED = 3
"""How many topics an error names."""

READER = "tidemark-reader"
"""The group of every consumer that joins none: the client looks up its coordinator all the same."""

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._AUTHENTICATION,
}

_NOT_NOW = {
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""Answers of brokers that start, stop, hand over to another or have too much to do."""

_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@contextmanager
def reaching_kafka(*topics: str) -> Iterator[None]:
    """Turn the client's errors into ServiceUnreachable, with the address, the topics asked for and what to do."""
    try:
        yield
    except KafkaException as error:
        if unreachable := unreachable_error(error.args[0], *topics):
            raise unreachable from error
        raise
    except TimeoutError as error:
        raise not_reached(f"no answer within {TIMEOUT:.0f} s") from error


def unreachable_error(refused: object, *topics: str) -> ServiceUnreachable | None:
    """Return the error for brokers that do not answer, not at present, or not this user; None for any other answer."""
    if not isinstance(refused, KafkaError):
        return None
    if refused.code() in _UNREACHABLE:
        return not_reached(refused.str())
    asked = sorted(set(topics))
    named = f" about {', '.join(asked[:_NAMED])}{' …' if len(asked) > _NAMED else ''}" if asked else ""
    if refused.code() in _NOT_NOW:
        return RequestRefused(
            f"Kafka at {settings().kafka_address()} gives no answer{named} at present: {refused.str()}",
            remedy="it passes when a broker has started, or another has taken over; if not: the brokers' logs",
        )
    if refused.code() in _DENIED:
        group = f" (consumer group {READER})" if refused.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else ""
        return denied(f"{refused.str()}{group}", named)
    return None


def denied(reason: str, named: str = "") -> RequestRefused:
    """Return the error for brokers that refuse this user a right."""
    return RequestRefused(
        f"Kafka at {settings().kafka_address()} refuses this user a right{named}: {reason}",
        remedy="grant the right that is missing: include/docs/deployment.md, “Secured Kafka”",
    )


def not_admitted(reason: str) -> ServiceUnreachable:
    """Return the error for brokers that refuse user, password or certificate."""
    return ServiceUnreachable(
        f"Kafka at {settings().kafka_address()} refuses us: {reason}",
        remedy="user, password and certificate in the file that TIDEMARK_KAFKA_PROPERTIES names",
    )


def has_no_answer(refused: KafkaError) -> bool:
    """Return whether it is the client that speaks, because no broker answers it."""
    return refused.code() in _UNREACHABLE


def is_denied(refused: KafkaError) -> bool:
    """Return whether the brokers refused the user a right."""
    return refused.code() in _DENIED


def asked_again(ask: Callable[[], _Answer]) -> _Answer:
    """Return the answer to a question that changes nothing; ask again for a second while brokers give none.

    Raises KafkaException.
    """

    def passes(error: BaseException) -> bool:
        refused = error.args[0] if isinstance(error, KafkaException) else None
        return isinstance(refused, KafkaError) and refused.code() in _NOT_NOW

    retrying = Retrying(
        retry=retry_if_exception(passes), stop=stop_after_attempt(6), wait=wait_fixed(_AGAIN_AFTER), reraise=True
    )
    return retrying(ask)


def not_reached(reason: str) -> ServiceUnreachable:
    """Return the error for brokers that do not answer, which names a refused password or certificate as the reason."""
    if refusal := _refusal():
        return not_admitted(refusal)
    return ServiceUnreachable(
        f"Kafka at {settings().kafka_address()}: {reason}", remedy="./tidemark status; ./tidemark up kafka"
    )


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
