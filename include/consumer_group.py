"""A pipeline's position as a Kafka consumer group, for the tools that watch lag there.

For monitoring only: nothing of Tidemark ever reads it, the ledger alone says what is committed.
"""

from __future__ import annotations

from collections.abc import Mapping

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

from include import kafka
from include.offsets import TopicPartition

PATIENCE = 5.0
"""Seconds that a commit may take before it is given up."""


def group_of(pipeline: str) -> str:
    """Name of the pipeline's consumer group."""
    return f"tidemark-{pipeline}"


class ConsumerGroup:
    """Commits positions to the pipeline's group without joining it; a commit that fails is told and forgotten."""

    def __init__(self, pipeline: str) -> None:
        self.name = group_of(pipeline)
        self._admin = kafka.admin()

    def commit(self, positions: Mapping[TopicPartition, int]) -> str:
        """Commit the next offset of each topic partition; why it failed, empty when it did not."""
        offsets = [confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in sorted(positions.items())]
        if not offsets:
            return ""
        try:
            wanted = [ConsumerGroupTopicPartitions(self.name, offsets)]
            futures = self._admin.alter_consumer_group_offsets(wanted, request_timeout=PATIENCE)
            done = futures[self.name].result(PATIENCE)
        except (KafkaException, TimeoutError) as error:
            return str(error.args[0] if error.args else "no answer")
        refused = [each for each in done.topic_partitions if each.error is not None]
        return "; ".join(f"{each.topic}-{each.partition}: {each.error}" for each in refused)
