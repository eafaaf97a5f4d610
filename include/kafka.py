"""What is asked of Kafka outside Spark: topics and their ids, offsets, and values of compacted topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from include.errors import OffsetsLost, ServiceUnreachable, TopicRecreated, UsageError
from include.offsets import OffsetRange, TopicPartition
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


@dataclass(frozen=True)
class TopicIdentity:
    """A topic as it is now."""

    topic: str
    topic_id: str
    topic_partitions: int


def topic_names() -> list[str]:
    """Names of all topics of the cluster. Raises ServiceUnreachable."""
    with reaching_kafka():
        client = admin()
        return sorted(client.list_topics(timeout=TIMEOUT).topics)


def describe_topics(topics: Iterable[str]) -> dict[str, TopicIdentity]:
    """Those of the topics that exist. Raises ServiceUnreachable."""
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    with reaching_kafka():
        # The client must outlive its futures: a collected one ends them with "handle is terminating".
        client = admin()
        futures = client.describe_topics(confluent_kafka.TopicCollection(wanted), request_timeout=TIMEOUT)
        found = {}
        for topic, future in futures.items():
            try:
                description = future.result(TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            found[topic] = TopicIdentity(topic, str(description.topic_id), len(description.partitions))
        return found


def check_same_topic(pipeline: str, identity: TopicIdentity | None, topic: str, stored_id: str) -> None:
    """Raise TopicRecreated when the topic is gone or has another id than the stored one."""
    if identity is None:
        raise TopicRecreated(
            f"topic {topic} (id {stored_id}) no longer exists",
            remedy=f'restore it, or create it again and adopt it: ./tidemark adopt {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )
    if identity.topic_id != stored_id:
        raise TopicRecreated(
            f"topic {topic} was deleted and created again: its id is {identity.topic_id}, commits were read from "
            f"{stored_id}; its old offsets mean other records",
            remedy=f'restore the topic, or go on with the new one: ./tidemark adopt {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )


def create_topic(topic: str, topic_partitions: int, *, compacted: bool = False) -> bool:
    """Create a topic unless it exists; True when it was created.

    Raises UsageError when a topic that must be compacted exists and is not.
    """
    config = {"cleanup.policy": "compact"} if compacted else {}
    with reaching_kafka():
        client = admin()
        future = client.create_topics(
            [NewTopic(topic, num_partitions=topic_partitions, config=config)], request_timeout=TIMEOUT
        )[topic]
        try:
            future.result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            return True
    if compacted and "compact" not in (policy := cleanup_policy(topic)):
        raise UsageError(
            f"topic {topic} exists with cleanup.policy={policy}, a speed view needs compact",
            remedy="alter the topic's cleanup.policy or choose another topic",
        )
    return False


def cleanup_policy(topic: str) -> str:
    """The topic's `cleanup.policy`, e.g. `compact`. Raises ServiceUnreachable."""
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ConfigResource.Type.TOPIC, topic)
    with reaching_kafka():
        client = admin()
        found = client.describe_configs([resource], request_timeout=TIMEOUT)[resource].result(TIMEOUT)
    return str(found["cleanup.policy"].value)


Isolation = Literal["read_committed", "read_uncommitted"]


def offset_bounds(
    topic_partitions: Iterable[TopicPartition], isolation: Isolation = "read_committed"
) -> dict[TopicPartition, tuple[int, int]]:
    """Earliest offset and end offset of each topic partition.

    The end is the last stable offset for read_committed: an open transaction holds it back.
    """
    with reaching_kafka():
        reader = consumer(**{"isolation.level": isolation})
        try:
            return {
                tp: reader.get_watermark_offsets(_client_tp(tp), timeout=TIMEOUT) for tp in sorted(topic_partitions)
            }
        finally:
            reader.close()


def offsets_at(
    moment: datetime, topic_partitions: Iterable[TopicPartition], isolation: Isolation = "read_committed"
) -> dict[TopicPartition, int | None]:
    """The first offset whose record's timestamp is at or after `moment`; None when there is none yet."""
    milliseconds = int(moment.timestamp() * 1000)
    with reaching_kafka():
        reader = consumer(**{"isolation.level": isolation})
        try:
            wanted = [confluent_kafka.TopicPartition(tp.topic, tp.partition, milliseconds) for tp in topic_partitions]
            found = reader.offsets_for_times(wanted, timeout=TIMEOUT) if wanted else []
        finally:
            reader.close()
    return {TopicPartition(f.topic, f.partition): f.offset if f.offset >= 0 else None for f in found}


def first_timestamp(earliest: Mapping[TopicPartition, tuple[int, int]]) -> datetime | None:
    """The earliest timestamp among the first records of the topic partitions; None when all are empty."""
    found: list[int] = []
    with reaching_kafka():
        reader = consumer(**few_records())
        try:
            for tp, (low, high) in earliest.items():
                if low >= high:
                    continue
                reader.assign([_client_tp(tp, low)])
                message = reader.poll(TIMEOUT)
                # Nothing visible up to the partition's end comes as an error.
                if message is not None and message.error() is None:
                    found.append(message.timestamp()[1])
        finally:
            reader.close()
    return datetime.fromtimestamp(min(found) / 1000, UTC) if found else None


def check_retained(pipeline: str, ranges: Iterable[OffsetRange]) -> None:
    """Raise OffsetsLost with the exact loss when retention has cut into one of the ranges."""
    wanted = [r for r in ranges if len(r)]
    bounds = offset_bounds(r.topic_partition for r in wanted)
    losses = []
    for each in wanted:
        low, high = bounds[each.topic_partition]
        if low > each.from_offset:
            lost = OffsetRange(each.topic_partition, each.from_offset, min(low, each.until_offset))
            losses.append(f"{lost} ({len(lost)} offsets) is below the earliest retained offset {low}")
        elif high < each.until_offset:
            losses.append(f"{each} reaches beyond the end offset {high}")
    if losses:
        raise OffsetsLost(
            "; ".join(losses),
            remedy="read what was archived of them instead: --source archive; what was not archived before it was "
            f"removed stops the stream too, which tells the way on: ./tidemark stream {pipeline} --until-caught-up",
            pipeline=pipeline,
        )


def topic_partitions_of(identities: Iterable[TopicIdentity]) -> list[TopicPartition]:
    """All topic partitions of the topics."""
    return [TopicPartition(i.topic, p) for i in identities for p in range(i.topic_partitions)]


def _client_tp(tp: TopicPartition, offset: int = -1001) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)
