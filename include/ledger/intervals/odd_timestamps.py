"""Records that pinning passed over: their timestamps lie too far ahead to end an interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.offsets import TopicPartition
from include.times import format_timestamp


@dataclass(frozen=True)
class OddTimestamps:
    """Records of a topic partition whose timestamps lie too far ahead to end an interval."""

    topic_partition: TopicPartition
    count: int
    """How many of them pinning passed over."""
    first_offset: int
    first_timestamp: int
    """Timestamp of the first, ms since 1970."""

    @property
    def first_time(self) -> str:
        """The first timestamp as a time; in milliseconds if it lies beyond the calendar."""
        return format_timestamp(self.first_timestamp)


def together(odd_timestamps: Iterable[OddTimestamps]) -> list[OddTimestamps]:
    """Return one count per topic partition, with the first record of all."""
    counted: dict[TopicPartition, OddTimestamps] = {}
    for each in sorted(odd_timestamps, key=lambda odd: odd.first_offset):
        first = counted.get(each.topic_partition)
        counted[each.topic_partition] = replace(first, count=first.count + each.count) if first else each
    return list(counted.values())


def as_json(odd_timestamps: Sequence[OddTimestamps]) -> dict[str, Any]:
    """Return how many there are and the first, as the verdict has it: `{"count", "first": {…} | None}`."""
    first = min(odd_timestamps, key=lambda odd: odd.topic_partition, default=None)
    return {
        "count": sum(odd.count for odd in odd_timestamps),
        "first": None
        if first is None
        else {
            "topic": first.topic_partition.topic,
            "partition": first.topic_partition.partition,
            "offset": first.first_offset,
            "timestamp": first.first_time,
        },
    }
