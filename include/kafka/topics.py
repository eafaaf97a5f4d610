"""Topics: which exist, by which id, and making them."""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from include.errors import UsageError
from include.kafka.client import TIMEOUT, admin, reaching_kafka
from include.offsets import TopicPartition
from include.topics import TopicIdentity, check_same_topic

__all__ = [
    "TopicIdentity",
    "check_same_topic",
    "cleanup_policy",
    "create_topic",
    "describe_topics",
    "is_compacted",
    "topic_config",
    "topic_names",
    "topic_partitions_of",
]


def topic_names() -> list[str]:
    """Return the names of all topics of the cluster. Raises ServiceUnreachable."""
    with reaching_kafka():
        client = admin()
        return sorted(client.list_topics(timeout=TIMEOUT).topics)


def describe_topics(topics: Iterable[str]) -> dict[str, TopicIdentity]:
    """Return those of the topics that exist, by name. Raises ServiceUnreachable."""
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    with reaching_kafka():
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
            described[topic] = TopicIdentity(topic, str(description.topic_id), len(description.partitions))
        return described


def create_topic(topic: str, topic_partitions: int, *, compacted: bool = False) -> bool:
    """Create a topic unless it exists, and return whether it was created.

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
    """Return the topic's `cleanup.policy`, e.g. `compact`. Raises ServiceUnreachable."""
    return topic_config(topic)["cleanup.policy"]


def topic_config(topic: str) -> dict[str, str]:
    """Return the topic's configuration. Raises ServiceUnreachable."""
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ConfigResource.Type.TOPIC, topic)
    with reaching_kafka():
        client = admin()
        config = client.describe_configs([resource], request_timeout=TIMEOUT)[resource].result(TIMEOUT)
    return {name: str(entry.value) for name, entry in config.items()}


def is_compacted(topic: str) -> bool:
    """Return whether the topic's log is compacted; False too where its configuration must not be read.

    Raises ServiceUnreachable.
    """
    try:
        return "compact" in cleanup_policy(topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return False


def topic_partitions_of(identities: Iterable[TopicIdentity]) -> list[TopicPartition]:
    """Return all topic partitions of the topics."""
    return [TopicPartition(i.topic, p) for i in identities for p in range(i.topic_partitions)]
