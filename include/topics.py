"""Identity of topics: a recreated topic has the same name and another id."""

from __future__ import annotations

from dataclasses import dataclass

from include.errors import TopicRecreated

VERSION = "version"
"""The header of a speed view's topic that names the version of a deletion, which has no value to hold it."""


@dataclass(frozen=True)
class TopicIdentity:
    """A topic with its current id and number of topic partitions."""

    topic: str
    topic_id: str
    topic_partitions: int


def check_same_topic(pipeline: str, identity: TopicIdentity | None, topic: str, stored_id: str) -> None:
    """Raise TopicRecreated when the topic is gone or has another id than the stored one."""
    if identity is None:
        raise TopicRecreated(
            f"topic {topic} (id {stored_id}) no longer exists",
            remedy=f'restore it, or create it again and adopt it: ./tidemark adopt {pipeline} {topic} --reason "…"; if '
            "it will not come back, take it out of the source: "
            f'./tidemark unsubscribe {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )
    if identity.topic_id != stored_id:
        raise TopicRecreated(
            f"topic {topic} was deleted and created again: its id is {identity.topic_id}, but commits have the id "
            f"{stored_id}, so the same offsets hold other records",
            remedy=f'restore the topic, or continue with the new one: ./tidemark adopt {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )
