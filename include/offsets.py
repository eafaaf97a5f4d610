"""Topics, topic partitions, offset ranges and fates: what micro-batches commit and intervals are pinned to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from include.errors import TopicRecreated

_SAME_CLUSTER = "set TIDEMARK_KAFKA_BOOTSTRAP to the cluster that was read; if it is this one"
"""The first thing to look at: in another cluster each topic has another id."""


@dataclass(frozen=True)
class TopicIdentity:
    """A topic with its current id, which changes when it is created again, and its number of topic partitions."""

    topic: str
    topic_id: str
    topic_partitions: int


def check_same_topic(
    pipeline: str, identity: TopicIdentity | None, topic: str, stored_id: str, *, asked_at: str = ""
) -> None:
    """Raise TopicRecreated when the topic is gone or has another id than the stored one.

    `asked_at`: address of the brokers, which may be those of another cluster.
    """
    elsewhere = f", or the Kafka at {asked_at} is another cluster" if asked_at else ""
    if identity is None:
        raise TopicRecreated(
            f"topic {topic} (id {stored_id}) no longer exists{elsewhere}",
            remedy=f"{_SAME_CLUSTER}: restore it, or create it again and adopt it: "
            f'./tidemark adopt {pipeline} {topic} --reason "…"; if it will not come back, take it out of the source: '
            f'./tidemark unsubscribe {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )
    if identity.topic_id != stored_id:
        raise TopicRecreated(
            f"topic {topic} was deleted and created again{elsewhere}: its id is {identity.topic_id}, but commits have "
            f"the id {stored_id}, so the same offsets hold other records",
            remedy=f"{_SAME_CLUSTER}: restore the topic, or continue with the new one: "
            f'./tidemark adopt {pipeline} {topic} --reason "…"',
            pipeline=pipeline,
        )


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of a Kafka topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Coordinates = tuple[str, int, int]
"""Topic, topic partition number and offset of a record."""


LAST_OFFSET = 2**63 - 1
"""Greater than all offsets: a range until it has no end yet."""


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets of one topic partition: `from_offset` included, `until_offset` not."""

    topic_partition: TopicPartition
    from_offset: int
    until_offset: int
    topic_id: str = field(default="", compare=False, repr=False)
    """Kafka's id of the topic; empty for the topic that the pipeline reads now."""

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset <= self.until_offset:
            raise ValueError(f"not an offset range: {self}")

    def __len__(self) -> int:
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.from_offset}, {self.until_offset})"

    def holds(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Return whether an offset of a topic partition is one of these."""
        return topic_partition == self.topic_partition and self.from_offset <= offset < self.until_offset

    def as_json(self) -> dict[str, Any]:
        """Return the form of a range wherever it is stored or printed; proofs are signed over keys in this order."""
        tp = self.topic_partition
        return {
            "topic": tp.topic,
            "topic_id": self.topic_id,
            "partition": tp.partition,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
        }


def assignment_json(ranges: Iterable[OffsetRange]) -> str:
    """Return the `assign` option of Spark's Kafka source: `{"topic": [0, 1]}`."""
    topics: dict[str, list[int]] = {}
    for each in sorted(ranges):
        topics.setdefault(each.topic_partition.topic, []).append(each.topic_partition.partition)
    return json.dumps(topics)


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets as Spark's Kafka source writes and reads them: `{"topic": {"0": 23}}`."""
    topics: dict[str, dict[str, int]] = {}
    for topic_partition, offset in sorted(offsets.items()):
        topics.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
    return json.dumps(topics)


def parse_offsets_json(text: str) -> dict[TopicPartition, int]:
    """Return the offsets that `offsets_json` wrote."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


def ranges_between(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Return the range from one position to another for each topic partition of `after`.

    A topic partition that is missing in `before` starts at 0: it was added in between.
    """
    return [OffsetRange(tp, before.get(tp, 0), until) for tp, until in sorted(after.items())]


def intersection(one: OffsetRange, other: OffsetRange) -> OffsetRange | None:
    """Return the offsets that both ranges contain; None when there are none."""
    begin, end = max(one.from_offset, other.from_offset), min(one.until_offset, other.until_offset)
    if one.topic_partition != other.topic_partition or begin >= end:
        return None
    return OffsetRange(one.topic_partition, begin, end)


def merged(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets in as few ranges as possible: adjacent and overlapping ranges are joined."""
    joined: list[OffsetRange] = []
    for each in sorted(r for r in ranges if len(r)):
        last = joined[-1] if joined else None
        if last and last.topic_partition == each.topic_partition and each.from_offset <= last.until_offset:
            end = max(last.until_offset, each.until_offset)
            joined[-1] = OffsetRange(last.topic_partition, last.from_offset, end)
        else:
            joined.append(each)
    return joined


def without(ranges: Iterable[OffsetRange], held: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the parts of the ranges that `held` does not contain; each incarnation of a topic counts for itself."""
    by_place: dict[tuple[str, TopicPartition], list[OffsetRange]] = {}
    for each in held:
        by_place.setdefault((each.topic_id, each.topic_partition), []).append(each)
    for each in ranges:
        tp, at = each.topic_partition, each.from_offset
        for one in merged(by_place.get((each.topic_id, tp), ())):
            if at < min(one.from_offset, each.until_offset):
                yield OffsetRange(tp, at, min(one.from_offset, each.until_offset), each.topic_id)
            at = max(at, one.until_offset)
        if at < each.until_offset:
            yield OffsetRange(tp, at, each.until_offset, each.topic_id)


class Fate(StrEnum):
    """What became of one offset."""

    ARCHIVED = "archived"
    """Its record has at least one row in the archive table. The rows are read from landing files until registered
    revisions hold them."""
    EMPTY = "empty"
    """A valid message with nothing to archive."""
    QUARANTINED = "quarantined"
    """A record that could not be decoded or broke a row rule, kept whole."""
    GAP = "gap"
    """No visible record there: compaction, a transaction marker, an aborted transaction."""


ERASED = "erased"
"""The fate of a record that was archived or in quarantine until its person's data were erased. It is not a `Fate`:
decoding never gives it to a record."""


@dataclass(frozen=True)
class Fates:
    """How many records of a topic partition met each fate; gaps are not records."""

    archived: int = 0
    empty: int = 0
    quarantined: int = 0
    erased: int = 0

    @property
    def records(self) -> int:
        """Records that are, or were, visible."""
        return self.archived + self.empty + self.quarantined + self.erased
