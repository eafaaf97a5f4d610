"""A pipeline's declared source in Kafka now: topics, topic partitions, and where a first read begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from include import kafka
from include.errors import UsageError
from include.kafka import TopicIdentity
from include.offsets import TopicPartition
from include.pipelines.spec import KafkaTopics
from include.settings import settings
from include.times import parse_time


def describe_source(source: KafkaTopics) -> dict[str, TopicIdentity]:
    """Return the source's topics that exist, by name. Raises ServiceUnreachable."""
    return kafka.describe_topics(source.named or sorted(filter(source.reads, kafka.topic_names())))


def check_topics_read(
    pipeline: str,
    source: KafkaTopics,
    stored: Mapping[str, str],
    topics: Mapping[str, TopicIdentity],
    archived: Collection[TopicPartition],
    left: Collection[str] = (),
) -> None:
    """Check the topics that were read before (`stored`: ids by name) against those that exist now.

    Those that have `left` the pipeline need not exist. Raises UsageError for another one that the source does not name
    any more, or of which it does not assign a topic partition any more that is `archived`, TopicRecreated for one that
    is another or gone, ServiceUnreachable for one that this user must not describe.
    """
    if missing := sorted(topic for topic in stored if topic not in left and not source.reads(topic)):
        raise UsageError(
            f"{', '.join(missing)} was read before, and the source does not name it any more",
            remedy=f'declare it again, or stop reading it: ./tidemark unsubscribe {pipeline} {missing[0]} --reason "…"',
            pipeline=pipeline,
        )
    for topic, topic_id in stored.items():
        if topic not in left or topic in topics or topic in source.named:
            if topic not in topics:
                # A pattern does not find a topic that this user must not describe; asked for by name, it is refused.
                kafka.describe_topics([topic])
            identity = topics.get(topic)
            is_same = identity is not None and identity.topic_id == topic_id
            asked_at = "" if is_same else settings().kafka_address()
            kafka.check_same_topic(pipeline, identity, topic, topic_id, asked_at=asked_at)
    # Without this, what is archived of one that is read no longer would be in no interval, and nothing would say so.
    read = {tp for tp in archived if tp.topic in source.assign}
    if unread := sorted(tp for tp in read if tp.partition not in source.assign[tp.topic]):
        raise UsageError(
            f"{', '.join(map(str, unread))} was read before, and the source does not assign it any more",
            remedy="assign it again; a topic is only left as a whole, after it was taken out of the source: "
            f'./tidemark unsubscribe {pipeline} {unread[0].topic} --reason "…"',
            pipeline=pipeline,
        )


def source_topic_partitions(source: KafkaTopics, topics: Mapping[str, TopicIdentity]) -> list[TopicPartition]:
    """Return the topic partitions of described topics that the source reads."""
    every = kafka.topic_partitions_of(topics.values())
    return [tp for tp in every if not source.assign or tp.partition in source.assign[tp.topic]]


def existing_topics(pipeline: str, source: KafkaTopics) -> dict[str, TopicIdentity]:
    """Return the source's topics by name. Raises UsageError when none of them exists, ServiceUnreachable."""
    described = describe_source(source)
    if not described:
        raise UsageError(
            f"no topic {' or '.join(source.named) or source.pattern} exists",
            remedy=how_to_create(pipeline, source),
            pipeline=pipeline,
        )
    return described


def existing_bounds(pipeline: str, source: KafkaTopics) -> dict[TopicPartition, tuple[int, int]]:
    """Return the earliest and the end offset of each topic partition now.

    Raises UsageError when no topic of the source exists, ServiceUnreachable.
    """
    return kafka.offset_bounds(source_topic_partitions(source, existing_topics(pipeline, source)))


def how_to_create(pipeline: str, source: KafkaTopics) -> str:
    """Return what to do where a source lacks a topic: events that are made up have no place in one that others read."""
    if source.pattern:
        return "create one"
    created = f", or start the stream, which does: ./tidemark stream {pipeline}" if source.subscribe else ""
    return f"create it{created}"


def first_offsets(
    source: KafkaTopics, bounds: Mapping[TopicPartition, tuple[int, int]], *, is_lost: bool = False
) -> dict[TopicPartition, int]:
    """Return where a first read begins, as declared, within the bounds that Kafka has now.

    `is_lost`: there was a first read before, and the ledger that knew its start is gone. What is declared to begin at
    the end then begins at the earliest offset: the end has moved since.
    """
    ends = {tp: low if is_lost else end for tp, (low, end) in bounds.items()}
    if source.starting_time:
        indexed = kafka.offsets_at(parse_time(source.starting_time), bounds)
        return {tp: ends[tp] if (at := indexed[tp]) is None else at for tp in bounds}
    if source.starting_offsets == "latest":
        return ends
    return {tp: min(max(_declared(source, tp, low), low), end) for tp, (low, end) in bounds.items()}


def _declared(source: KafkaTopics, tp: TopicPartition, low: int) -> int:
    if isinstance(source.starting_offsets, str):
        return low
    return source.starting_offsets.get(tp.topic, {}).get(tp.partition, low)
