"""Offset ranges that somebody asks for by hand: read from text, and checked before Spark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from include import kafka
from include.errors import ArchiveBehind, OffsetsLost, UsageError
from include.kafka.sources import describe_source, source_topic_partitions
from include.ledger.archive.committed import ARCHIVE, committed_offsets, first_committed_offsets
from include.ledger.intervals.states import Source
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline

_RANGE = re.compile(r"([A-Za-z0-9._-]{1,249}):([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")


def parse_ranges(text: str) -> list[OffsetRange]:
    """Return the ranges of `TOPIC:PARTITION:FROM-UNTIL,…`, in order; FROM is included, UNTIL is not.

    Raise UsageError for any other form, an empty range, and a topic partition that is named twice.
    """
    ranges: dict[TopicPartition, OffsetRange] = {}
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None or int(found[3]) >= int(found[4]):
            raise UsageError(
                f"not an offset range: {part.strip()!r}",
                remedy="TOPIC:PARTITION:FROM-UNTIL with FROM below UNTIL, parted by commas: nest-logs:0:110-220",
            )
        tp = TopicPartition(found[1], int(found[2]))
        if tp in ranges:
            raise UsageError(f"two ranges of {tp}", remedy="one range per topic partition")
        ranges[tp] = OffsetRange(tp, int(found[3]), int(found[4]))
    return sorted(ranges.values())


def format_ranges(ranges: Sequence[OffsetRange]) -> str:
    """Return the text that `parse_ranges` reads."""
    parts = ((r.topic_partition, r.from_offset, r.until_offset) for r in ranges)
    return ",".join(f"{tp.topic}:{tp.partition}:{begin}-{end}" for tp, begin, end in parts)


def check_ranges(pipeline: Pipeline, ranges: Sequence[OffsetRange], source: Source) -> None:
    """Raise unless the source holds every offset of the ranges.

    Raise UsageError for a topic partition that the pipeline does not read, OffsetsLost for offsets that are gone or
    were never written, ArchiveBehind for those that are not archived yet; each with the numbers.
    """
    if source is Source.KAFKA:
        known = source_topic_partitions(pipeline.source, describe_source(pipeline.source))
        _check_known(pipeline, ranges, known)
        kafka.check_retained(pipeline.name, ranges)
        return
    ends = committed_offsets(pipeline.name).get(ARCHIVE, {})
    _check_known(pipeline, ranges, list(ends))
    _check_archived(pipeline, ranges, first_committed_offsets(pipeline.name), ends)


def _check_known(pipeline: Pipeline, ranges: Sequence[OffsetRange], known: Sequence[TopicPartition]) -> None:
    for each in ranges:
        if each.topic_partition not in known:
            there = ", ".join(map(str, sorted(known))) or "none, for nothing has been written"
            raise UsageError(
                f"the pipeline reads no topic partition {each.topic_partition}",
                remedy=f"it reads {there}",
                pipeline=pipeline.name,
            )


def _check_archived(
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    for each in ranges:
        begin, end = begins.get(each.topic_partition, 0), ends[each.topic_partition]
        if each.from_offset < begin:
            raise OffsetsLost(
                f"{each} begins before the archive's first offset {begin}",
                remedy="ask for later offsets, or read from Kafka: --source kafka",
                pipeline=pipeline.name,
            )
        if each.until_offset > end:
            raise ArchiveBehind(
                f"{each} reaches beyond the archive, which ends before offset {end}",
                remedy=f"./tidemark stream {pipeline.name} --until-caught-up, or read from Kafka: --source kafka",
                pipeline=pipeline.name,
            )
