"""Offset ranges that a user names: read from text, and checked before Spark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from include import kafka
from include.errors import ArchiveBehind, OffsetsLost, UsageError
from include.intervals.boundaries import check_sources
from include.kafka.sources import source_topic_partitions
from include.ledger.archive.committed import (
    ARCHIVE,
    committed_offsets,
    first_committed_offsets,
)
from include.ledger.intervals.states import Source
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline

_RANGE = re.compile(r"([A-Za-z0-9._-]{1,249}):([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")

_NAMES = {Source.KAFKA: "Kafka", Source.ARCHIVE: "the archive"}

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""The first offset that a source holds of each topic partition, and the one after the last."""


def parse_ranges(text: str, pipeline: str) -> list[OffsetRange]:
    """Return the ranges of `TOPIC:PARTITION:FROM-UNTIL,…`, in order; FROM is included, UNTIL is not.

    Raise UsageError for any other form, a range that is reversed or empty, and ranges that overlap.
    """
    ranges = sorted(_parse(part.strip(), pipeline) for part in text.split(","))
    for one, other in pairwise(ranges):
        if one.topic_partition == other.topic_partition and one.until_offset > other.from_offset:
            raise UsageError(f"the ranges {one} and {other} overlap", remedy="name each offset once", pipeline=pipeline)
    return ranges


def _parse(part: str, pipeline: str) -> OffsetRange:
    form = "TOPIC:PARTITION:FROM-UNTIL, separated by commas: nest-logs:0:110-220"
    match = _RANGE.fullmatch(part)
    if match is None:
        raise UsageError(f"not an offset range: {part!r}", remedy=form, pipeline=pipeline)
    tp, begin, until = TopicPartition(match[1], int(match[2])), int(match[3]), int(match[4])
    if begin >= until:
        raise UsageError(
            f"the range of {tp} from offset {begin} until {until} holds none",
            remedy=f"FROM is below UNTIL, which is not included: {form}",
            pipeline=pipeline,
        )
    return OffsetRange(tp, begin, until)


def format_ranges(ranges: Sequence[OffsetRange]) -> str:
    """Return the text that `parse_ranges` reads."""
    parts = ((r.topic_partition, r.from_offset, r.until_offset) for r in ranges)
    return ",".join(f"{tp.topic}:{tp.partition}:{begin}-{end}" for tp, begin, end in parts)


def check_ranges(pipeline: Pipeline, ranges: Sequence[OffsetRange], source: Source) -> None:
    """Raise unless the source holds every offset of the ranges now, without waiting.

    Raise UsageError for a topic partition that the pipeline does not read, OffsetsLost for offsets that are gone from
    the source or were never in Kafka, ArchiveBehind for those that are not archived yet, TopicRecreated where
    Kafka's topic is not the one that was archived, ServiceUnreachable.
    """
    bounds = _in_kafka(pipeline) if source is Source.KAFKA else _in_archive(pipeline)
    for each in ranges:
        if each.topic_partition not in bounds:
            raise UsageError(
                f"{each} is of no topic partition that the pipeline reads",
                remedy=f"{_NAMES[source]} has {', '.join(map(str, sorted(bounds))) or 'none yet'}",
                pipeline=pipeline.name,
            )
    _check_begins(pipeline, ranges, source, bounds)
    _check_ends(pipeline, ranges, source, bounds)


def _check_begins(pipeline: Pipeline, ranges: Sequence[OffsetRange], source: Source, bounds: Bounds) -> None:
    gone = [
        f"{each} begins before offset {first}, the first that {_NAMES[source]} holds"
        for each in ranges
        if each.from_offset < (first := bounds[each.topic_partition][0])
    ]
    if gone:
        other = Source.ARCHIVE if source is Source.KAFKA else Source.KAFKA
        raise OffsetsLost(
            "; ".join(gone),
            remedy=f"ask for later offsets, or read them from the other side: --source {other}",
            pipeline=pipeline.name,
        )


def _check_ends(pipeline: Pipeline, ranges: Sequence[OffsetRange], source: Source, bounds: Bounds) -> None:
    beyond = [
        f"{each} reaches beyond offset {end}, at which {_NAMES[source]} ends"
        for each in ranges
        if each.until_offset > (end := bounds[each.topic_partition][1])
    ]
    if beyond and source is Source.KAFKA:
        raise OffsetsLost("; ".join(beyond), remedy="ask for earlier offsets", pipeline=pipeline.name)
    if beyond:
        raise ArchiveBehind(
            "; ".join(beyond),
            remedy=f"./tidemark stream {pipeline.name} --until-caught-up, or read them from Kafka: --source kafka",
            pipeline=pipeline.name,
        )


def _in_kafka(pipeline: Pipeline) -> Bounds:
    return kafka.offset_bounds(source_topic_partitions(pipeline.source, check_sources(pipeline)))


def _in_archive(pipeline: Pipeline) -> Bounds:
    firsts = first_committed_offsets(pipeline.name)
    ends = committed_offsets(pipeline.name).get(ARCHIVE, {})
    return {tp: (firsts.get(tp, end), end) for tp, end in ends.items()}
