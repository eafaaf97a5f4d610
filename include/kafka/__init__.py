"""Kafka outside Spark: its topics, offsets and records, as commands and drivers ask for them."""

from include.kafka.bounds import Isolation, check_retained, first_timestamp, offset_bounds, offsets_at, record_times
from include.kafka.client import (
    TIMEOUT,
    admin,
    consumer,
    enqueue,
    few_records,
    kept_clients,
    producer,
    reaching_kafka,
    send,
)
from include.kafka.topics import (
    TopicIdentity,
    check_same_topic,
    cleanup_policy,
    create_topic,
    describe_topics,
    is_compacted,
    topic_config,
    topic_names,
    topic_partitions_of,
)

__all__ = [
    "TIMEOUT",
    "Isolation",
    "TopicIdentity",
    "admin",
    "check_retained",
    "check_same_topic",
    "cleanup_policy",
    "consumer",
    "create_topic",
    "describe_topics",
    "enqueue",
    "few_records",
    "first_timestamp",
    "is_compacted",
    "kept_clients",
    "offset_bounds",
    "offsets_at",
    "producer",
    "reaching_kafka",
    "record_times",
    "send",
    "topic_config",
    "topic_names",
    "topic_partitions_of",
]
