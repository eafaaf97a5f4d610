"""Which quarantined records somebody means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.errors import UsageError
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline


@dataclass(frozen=True)
class Selection:
    """Which quarantined records are meant; an unset field does not restrict."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None
    topic_id: str | None = None
    """Kafka's id of the topic: one that was created again has other records at the same offsets."""

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        topic: str | None = None,
        *,
        partition: int | None = None,
        offset: int | None = None,
        reason: str | None = None,
        topic_id: str | None = None,
    ) -> Selection:
        """Return a selection of a pipeline; the topic may be left out if there is only one.

        Raises UsageError when an offset is named without its topic partition, or a number is negative.
        """
        for what, number in (("topic partition", partition), ("offset", offset)):
            if number is not None and number < 0:
                raise UsageError(f"there is no {what} {number}", remedy="both count from 0")
        if topic is None and len(pipeline.source.named) == 1 and (partition is not None or offset is not None):
            topic = pipeline.source.named[0]
        if offset is not None and (topic is None or partition is None):
            raise UsageError("an offset needs its topic partition", remedy="--topic T --partition P --offset O")
        return cls(topic, partition, offset, reason, topic_id)

    @property
    def everything(self) -> bool:
        """Whether nothing restricts it."""
        return self == Selection()

    @property
    def range(self) -> OffsetRange | None:
        """The one offset it names."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        tp = TopicPartition(self.topic, self.partition)
        return OffsetRange(tp, self.offset, self.offset + 1, self.topic_id or "")

    def holds(self, row: dict[str, Any], topic_id: str = "") -> bool:
        """Return whether a quarantined record, of a topic with this id, is meant."""
        wanted = {
            "kafka_topic": self.topic,
            "kafka_partition": self.partition,
            "kafka_offset": self.offset,
            "reason": self.reason,
        }
        is_of_topic = self.topic_id in (None, topic_id)
        return is_of_topic and all(value is None or row[name] == value for name, value in wanted.items())
