"""Resolve times to offsets of a pipeline's topics: the boundaries between which intervals lie."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyarrow import ArrowInvalid

from include import kafka, lake
from include.errors import OffsetsLost, ServiceUnreachable, UsageError
from include.kafka import offset_search
from include.kafka.offset_search import Spans
from include.kafka.sources import check_topics_read, describe_source, how_to_create, source_topic_partitions
from include.kafka.timestamps import TOLERANCE, Boundary, TimestampRule
from include.kafka.truncation import check_ends, timestamps_at
from include.ledger.archive.archived_offsets import CommittedSpan, commit_of
from include.ledger.archive.committed import archived_partitions, first_committed_offsets
from include.ledger.archive.landing_files import files_covering
from include.ledger.archive.positions import positions, stored_topics, topics_that_left
from include.ledger.database import clock
from include.ledger.intervals import pins
from include.ledger.intervals.odd_timestamps import OddTimestamps
from include.ledger.intervals.pins import Neighbours, PinnedInterval
from include.ledger.streams import lines
from include.offsets import Fate, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines.spec import Pipeline
from include.pipelines.spec.lines import no_offsets
from include.times import Interval

Offsets = Mapping[TopicPartition, int]

_Search = tuple[datetime, frozenset[tuple[TopicPartition, tuple[int, int]]]]
"""The time and the spans of a search: a repeated search does not read the log again."""


@dataclass(frozen=True)
class SourceLog:
    """A pipeline's topics as they were when pinning began: what is appended later changes no boundary."""

    pipeline: Pipeline
    bounds: Spans
    """Earliest and end offset of each topic partition. The end includes what open transactions hide: records that they
    may still commit belong to their own interval."""
    topic_ids: Mapping[str, str]
    read_at: datetime
    """By the ledger's clock, as commits are: a host's that is wrong must not move a boundary."""
    left: Collection[str] = ()
    """Topics that the pipeline has stopped reading: they end where the archive does, and may be gone from Kafka."""
    _commits: dict[TopicPartition, CommittedSpan] = field(default_factory=dict, repr=False)
    _searches: dict[_Search, Mapping[TopicPartition, Boundary]] = field(default_factory=dict, repr=False)

    @property
    def rule(self) -> TimestampRule:
        """What may end an interval. A short one tolerates no timestamp that leaps over the next interval."""
        tolerance = min(TOLERANCE, self.pipeline.schedule.every)
        return TimestampRule(_milliseconds(self.read_at), self._committed_at, int(tolerance.total_seconds() * 1000))

    def boundaries(self, moment: datetime, spans: Spans) -> Mapping[TopicPartition, Boundary]:
        """Return where an interval ends at `moment` in each topic partition's span.

        What is left of a topic that is read no longer is of the next interval, whatever its times: no more will come.
        """
        search = moment, frozenset(spans.items())
        if search not in self._searches:
            known = {
                tp: Boundary(until) for tp, (begin, until) in spans.items() if begin >= until or tp.topic in self.left
            }
            rest = {tp: span for tp, span in spans.items() if tp not in known}
            self._searches[search] = known | offset_search.find_boundaries(moment, rest, self.rule)
        return self._searches[search]

    def last_timestamps(self, pinned: PinnedInterval) -> dict[TopicPartition, int]:
        """Return the timestamps, in milliseconds, of the records before the ends of an interval's ranges.

        Without those of other incarnations, of topics that are read no longer, and of offsets at which no record is
        visible.
        """
        ends = {r.topic_partition: r.until_offset - 1 for r in pinned.ranges if r.until_offset}
        return self._timestamps_at(
            {
                tp: offset
                for tp, offset in ends.items()
                if tp in self.bounds
                and tp.topic not in self.left
                and pinned.topic_ids[tp.topic] == self.topic_ids[tp.topic]
            }
        )

    def _timestamps_at(self, offsets: Offsets) -> dict[TopicPartition, int]:
        return timestamps_at(offsets)

    def spans_between(self, neighbours: Neighbours) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offsets between pinned intervals; before the first, those from the archive's beginning on."""
        after = neighbours.after
        if after is None:
            begins = self._continuation(neighbours.before)
            ends = {tp: end for tp, (_, end) in self.bounds.items()}
            return {tp: (begins.get(tp, 0), max(begins.get(tp, 0), end)) for tp, end in (begins | ends).items()}
        begins = self._continuation(neighbours.before)
        spans = {}
        for each in after.ranges:
            tp = each.topic_partition
            # A topic that was deleted since has nothing left to pin: adopting its successor pinned the rest.
            is_open = after.topic_ids[tp.topic] == self.topic_ids.get(tp.topic) and tp in self.bounds
            begin = min(begins.get(tp, 0), each.from_offset) if is_open else each.from_offset
            spans[tp] = (begin, each.from_offset)
        return spans

    def _continuation(self, before: PinnedInterval | None) -> dict[TopicPartition, int]:
        """Return where the offsets after an interval begin: at its end, in a new incarnation at that one's beginning.

        A topic partition that the interval lacks although it has the topic was added since, and begins at 0. None
        begins before the archive does: an interval may have been pinned, without offsets, before the first commit.
        """
        known = before.topic_ids if before else {}
        continued = {topic for topic, topic_id in known.items() if self.topic_ids.get(topic) == topic_id}
        archived = first_committed_offsets(self.pipeline.name)
        begins = {tp: archived.get(tp, low) for tp, (low, _) in self.bounds.items() if tp.topic not in continued}
        begins |= {tp: first for tp, first in archived.items() if tp.topic in continued}
        ends = {r.topic_partition: r.until_offset for r in before.ranges} if before else {}
        continuing = ((tp, end) for tp, end in ends.items() if tp.topic in continued)
        return begins | {tp: max(end, archived.get(tp, 0)) for tp, end in continuing}

    def first_time(self, spans: Spans) -> datetime | None:
        """Return when the records begin that Kafka still holds of the spans; None when there are none."""
        return min(self.first_times(spans).values(), default=None)

    def first_times(self, spans: Spans) -> Mapping[TopicPartition, datetime]:
        """Return when the records begin that Kafka still holds of the spans, where there are any."""
        retained = {
            tp: (max(begin, self.bounds[tp][0]), end)
            for tp, (begin, end) in spans.items()
            if tp in self.bounds and tp.topic not in self.left
        }
        return offset_search.first_times({tp: span for tp, span in retained.items() if span[0] < span[1]}, self.rule)

    def removed(self, spans: Spans) -> list[OffsetRange]:
        """Return the offsets of the spans that retention has removed: no search finds the times of their records."""
        lows = {tp: low for tp, (low, _) in self.bounds.items() if tp.topic not in self.left}
        return [
            OffsetRange(tp, begin, min(lows[tp], end))
            for tp, (begin, end) in sorted(spans.items())
            if tp in lows and begin < min(lows[tp], end)
        ]

    def unknown_times(self, moment: datetime, spans: Spans, begins: Offsets) -> list[OffsetRange]:
        """Return removed offsets of the spans that may hold records from `moment` on, which was found at `begins`.

        None do where a retained record lies before it, where the archive committed the last of them before then, nor
        where all that it has of them is older: a stream that catches up commits old records late.
        """
        unknown = []
        for each in self.removed(spans):
            tp = each.topic_partition
            committed_at = self._committed_at(tp, each.until_offset - 1)
            is_later = committed_at is not None and committed_at >= _milliseconds(moment - TOLERANCE)
            if begins[tp] <= each.until_offset and is_later and self._may_be_archived_from(moment, each):
                unknown.append(each)
        return unknown

    def _may_be_archived_from(self, moment: datetime, offsets: OffsetRange) -> bool:
        """Return whether the archive has a record of `moment` or later at these offsets; also when no file tells.

        Of files that were committed earlier no timestamp is so late that it may end an interval (`TimestampRule`).
        """
        paths = [
            path
            for fate in (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED)
            for path in files_covering(self.pipeline.name, [offsets], fate, committed_from=moment - TOLERANCE)
        ]
        within = lake.bounds_of(offsets)
        try:
            return not paths or any(
                lake.has_times_from(lake.uri(path), "kafka_timestamp", moment, within) for path in paths
            )
        except (OSError, ArrowInvalid):
            return True

    def _committed_at(self, tp: TopicPartition, offset: int) -> int | None:
        span = self._commits.get(tp)
        if span is None or not span.from_offset <= offset < span.until_offset:
            span = commit_of(self.pipeline.name, tp, self.topic_ids[tp.topic], offset)
            if span is None:
                return None
            self._commits[tp] = span
        return _milliseconds(span.committed_at)


def check_sources(pipeline: Pipeline) -> dict[str, TopicIdentity]:
    """Return the source topics that exist. Raises what `check_topics_read` raises about those that were read before."""
    identities = describe_source(pipeline.source)
    stored, left = stored_topics(pipeline.name), topics_that_left(pipeline.name)
    archived = archived_partitions(pipeline.name) if pipeline.source.assign else ()
    check_topics_read(pipeline.name, pipeline.source, stored, identities, archived, left)
    return identities


def read_log(pipeline: Pipeline) -> SourceLog:
    """Return the pipeline's topics as they are now.

    Raises TopicRecreated, LogTruncated, OffsetsLost when a topic of a pinned interval does not exist, UsageError when
    another one does not, when lines were read, or when the source lacks a topic or a topic partition that was read
    before, ServiceUnreachable.
    """
    topics, stored = describe_source(pipeline.source), stored_topics(pipeline.name)
    reached, left = positions(pipeline.name), topics_that_left(pipeline.name)
    archived = archived_partitions(pipeline.name) if pipeline.source.assign else ()
    check_topics_read(pipeline.name, pipeline.source, stored, topics, archived, left)
    if (missing := set(pipeline.source.named) - topics.keys()) or not (topics or left):
        if read := lines.sources_of(pipeline.name):
            raise no_offsets(read[0], pipeline.name)
        last = pins.last_interval(pipeline.name)
        pinned = last.topic_ids.keys() if last else set[str]()
        # What was archived, too, `check_topics_read` has refused: of all others, no offset is known.
        error = OffsetsLost if (pinned & missing if missing else pinned) else UsageError
        raise error(
            f"topic {', '.join(sorted(missing))} does not exist"
            if missing
            else f"no topic matches {pipeline.source.pattern!r}",
            remedy=how_to_create(pipeline.name, pipeline.source),
            pipeline=pipeline.name,
        )
    bounds = kafka.offset_bounds(source_topic_partitions(pipeline.source, topics), "read_uncommitted")
    check_ends(pipeline.name, reached, {tp: end for tp, (_, end) in bounds.items()})
    # Also of one that is declared again, until a stream reads it again.
    ended = {tp: (0, end) for tp, end in reached.items() if tp.topic in left}
    others = {tp: span for tp, span in bounds.items() if tp.topic not in left}
    topic_ids = {topic: identity.topic_id for topic, identity in topics.items()}
    topic_ids |= {topic: stored[topic] for topic in left}
    return SourceLog(pipeline, others | ended, topic_ids, clock(), left)


def asked_interval(pipeline: Pipeline, from_time: datetime, to_time: datetime) -> Interval:
    """Return the interval between two times that somebody asks for: one of the schedule that has passed.

    If the schedule was changed, intervals pinned before are taken as they are, and so is the time between them and the
    schedule's first boundary. Raises UsageError for any other.
    """
    now = datetime.now(UTC)
    try:
        return pipeline.schedule.interval(from_time, to_time, now=now)
    except UsageError:
        # Only a refusal needs the ledger; without the ledger it stays a refusal.
        with suppress(ServiceUnreachable):
            # By which it is pinned; this host's may be behind.
            now = clock()
            if from_time < to_time <= now and _is_of_another_schedule(pipeline, Interval(from_time, to_time)):
                return Interval(from_time, to_time)
            return pipeline.schedule.interval(from_time, to_time, now=now)
        raise


def _is_of_another_schedule(pipeline: Pipeline, asked: Interval) -> bool:
    known = pins.find_interval(pipeline.name, asked.from_time)
    if known is not None:
        return known.interval == asked
    between = pins.find_neighbours(pipeline.name, asked)
    begins = {pipeline.schedule.floor(asked.from_time)}
    if between.before is not None:
        begins.add(between.before.interval.to_time)
    end = pipeline.schedule.floor(asked.from_time) + pipeline.schedule.every
    if between.after is not None:
        end = min(end, between.after.interval.from_time)
    return asked.from_time in begins and asked.to_time == end


def odd_timestamps_of(boundaries: Mapping[TopicPartition, Boundary]) -> list[OddTimestamps]:
    """Return the odd timestamps that were passed over to find the boundaries."""
    return [
        OddTimestamps(tp, each.odd_count, each.first_odd.offset, each.first_odd.milliseconds)
        for tp, each in sorted(boundaries.items())
        if each.first_odd is not None
    ]


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
