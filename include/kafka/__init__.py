"""Kafka outside Spark: its topics, offsets and records, as commands and drivers ask for them."""

from include.kafka.bounds import (
    END_TRANSACTION,
    check_retained,
    end_offsets,
    first_timestamp,
    newest_timestamp,
    offset_bounds,
    offsets_at,
    record_times,
    topics_of,
    unread_error,
)
from include.kafka.client import (
    admin,
    consumer,
    enqueue,
    few_records,
    kept_clients,
    next_message,
    producer,
    send,
)
from include.kafka.refusals import TIMEOUT, reaching_kafka
from include.kafka.topics import (
    TopicLimits,
    cleanup_policy,
    create_topic,
    describe_topics,
    is_compacted,
    topic_config,
    topic_limits,
    topic_names,
    topic_partitions_of,
)
from include.offsets import TopicIdentity, check_same_topic
