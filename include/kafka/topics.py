"""Topics: which exist, by which id, where their keys lie, and making them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from include.errors import UsageError
from include.kafka.client import BATCH_SIZE, CLIENT_LIMIT, admin, undelivered
from include.kafka.refusals import TIMEOUT, is_denied, reaching_kafka
from include.offsets import TopicIdentity, TopicPartition
from include.settings import settings

MAX_MESSAGE_BYTES = "max.message.bytes"
"""A topic's option: the largest batch of records that it takes."""

_NO_ID = str(confluent_kafka.Uuid(0, 0))
"""What brokers without topic ids give every topic."""

_OVERHEAD = 1024
"""Most bytes that a message takes besides its key, value and headers."""

_FACTOR, _SEED, _BITS = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF
"""Constants of murmur2."""


def topic_names() -> list[str]:
    """Return the names of all topics of the cluster. Raises ServiceUnreachable."""
    with reaching_kafka():
        client = admin()
        return sorted(client.list_topics(timeout=TIMEOUT).topics)


def describe_topics(topics: Iterable[str]) -> dict[str, TopicIdentity]:
    """Return those of the topics that exist, by name. Raises ServiceUnreachable, UsageError for one without an id."""
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    with reaching_kafka(*wanted):
        # The client must outlive its futures: garbage collection ends them with "handle is terminating".
        client = admin()
        futures = client.describe_topics(confluent_kafka.TopicCollection(wanted), request_timeout=TIMEOUT)
        described = {}
        for topic, future in futures.items():
            try:
                description = future.result(TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            if (topic_id := str(description.topic_id)) == _NO_ID:
                raise UsageError(
                    f"the brokers give the topic {topic} no id", remedy="use brokers of Kafka 2.8 or newer"
                )
            described[topic] = TopicIdentity(topic, topic_id, len(description.partitions))
        return described


def create_topic(topic: str, topic_partitions: int, *, compacted: bool = False) -> bool:
    """Create a topic unless it exists, and return whether it was created.

    Raises UsageError when a topic that must be compacted, and nothing else, exists and is not, and for one that is
    missing where this user must not create any; ServiceUnreachable.
    """
    config = {"cleanup.policy": "compact"} if compacted else {}
    with reaching_kafka(topic):
        client = admin()
        future = client.create_topics(
            [NewTopic(topic, num_partitions=topic_partitions, config=config)], request_timeout=TIMEOUT
        )[topic]
        try:
            future.result(TIMEOUT)
        except KafkaException as error:
            if is_denied(error.args[0]):
                # The refusal does not say whether the topic exists.
                _check_exists(topic)
            elif error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            return True
    # `delete` beside it would remove the latest values of keys once they are old.
    if compacted and (policy := cleanup_policy(topic)) and {each.strip() for each in policy.split(",")} != {"compact"}:
        raise UsageError(
            f"topic {topic} exists with cleanup.policy={policy}, a speed view needs compact alone",
            remedy=f"kafka-configs.sh --bootstrap-server {settings().kafka_address()} --alter --entity-type topics "
            f"--entity-name {topic} --add-config cleanup.policy=compact; or choose another topic",
        )
    return False


def _check_exists(topic: str) -> None:
    if not describe_topics([topic]):
        raise UsageError(
            f"no topic {topic} exists, and this user must not create it",
            remedy="create it, or grant Create on it: include/docs/deployment.md, “Secured Kafka”",
        )


def cleanup_policy(topic: str) -> str:
    """Return the topic's `cleanup.policy`, e.g. `compact`; empty where this user must not read it.

    Raises ServiceUnreachable.
    """
    return topic_config(topic).get("cleanup.policy", "")


def topic_config(topic: str) -> dict[str, str]:
    """Return the topic's configuration; empty, with a warning, where this user must not read it.

    Raises ServiceUnreachable.
    """
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ConfigResource.Type.TOPIC, topic)
    with reaching_kafka(topic):
        client = admin()
        try:
            config = client.describe_configs([resource], request_timeout=TIMEOUT)[resource].result(TIMEOUT)
        except KafkaException as error:
            if not is_denied(error.args[0]):
                raise
            _warn_unreadable(topic)
            return {}
    return {name: str(entry.value) for name, entry in config.items()}


@cache
def _warn_unreadable(topic: str) -> None:
    """Warn once in a process."""
    logging.getLogger("tidemark").warning(
        "this user must not read the settings of the topic %s (DescribeConfigs), so they are not checked", topic
    )


@dataclass(frozen=True)
class TopicLimits:
    """What a topic takes of a client."""

    largest: int
    """Bytes that key, value and headers of a message may have."""
    is_compacted: bool
    batch: int = BATCH_SIZE
    """Bytes that a batch of several messages may have: the topic compares its limit with the batch."""


def topic_limits(topic: str, sent: int = CLIENT_LIMIT) -> TopicLimits:
    """Return what a topic takes of a client that sends messages of so many bytes.

    Where this user must not read the topic's settings, only the client has limits. Raises ServiceUnreachable, and
    TidemarkError for a topic that is not there.
    """
    try:
        config = _config_soon(topic)
    except KafkaException as error:
        raise undelivered(topic, error.args[0]) from None
    taken = min(sent, int(config.get(MAX_MESSAGE_BYTES, sent)))
    return TopicLimits(taken - _OVERHEAD, "compact" in config.get("cleanup.policy", ""), batch_taken([config]))


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@retry(retry=retry_if_exception(_is_unknown), stop=stop_after_delay(TIMEOUT), wait=wait_fixed(0.1), reraise=True)
def _config_soon(topic: str) -> dict[str, str]:
    """Return `topic_config`: a broker may learn of a new topic a moment after it was created."""
    return topic_config(topic)


def batch_taken(configs: Iterable[Mapping[str, str]]) -> int:
    """Return the bytes of the largest batch that all topics of these configurations take."""
    return min([BATCH_SIZE, *(int(config[MAX_MESSAGE_BYTES]) for config in configs if MAX_MESSAGE_BYTES in config)])


def is_compacted(topic: str) -> bool:
    """Return whether the topic's log is compacted; False too where its configuration must not be read.

    Raises ServiceUnreachable.
    """
    return "compact" in cleanup_policy(topic)


def topic_partitions_of(identities: Iterable[TopicIdentity]) -> list[TopicPartition]:
    """Return all topic partitions of the topics."""
    return [TopicPartition(i.topic, p) for i in identities for p in range(i.topic_partitions)]


def placed_at(key: bytes, topic_partitions: int) -> int:
    """Return the number of the topic partition that the key leads to in a topic with so many.

    Source: `murmur2` in org.apache.kafka.common.utils.Utils, and BuiltInPartitioner.partitionForKey.
    """
    return (_murmur2(key) & 0x7FFFFFFF) % topic_partitions


def _murmur2(data: bytes) -> int:
    whole = len(data) - len(data) % 4
    found = _SEED ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _BITS
        found = (found * _FACTOR & _BITS) ^ ((word ^ word >> 24) * _FACTOR & _BITS)
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _BITS
    found = (found ^ found >> 13) * _FACTOR & _BITS
    return found ^ found >> 15
