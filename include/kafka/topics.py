"""Topics: which exist, by which id, and making them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from include.errors import TopicRecreated, UsageError
from include.kafka.client import TIMEOUT, admin, reaching_kafka
from include.offsets import TopicPartition


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


def topic_partitions_of(identities: Iterable[TopicIdentity]) -> list[TopicPartition]:
    """All topic partitions of the topics."""
    return [TopicPartition(i.topic, p) for i in identities for p in range(i.topic_partitions)]
