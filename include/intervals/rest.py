"""The rest of a topic that was deleted: archived offsets in no interval yet, to which no time leads any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from include import lake
from include.intervals.boundaries import SourceLog
from include.ledger.archive.landing_files import files_covering
from include.ledger.archive.positions import positions, stored_topics
from include.ledger.database import clock
from include.ledger.intervals import missing, pins
from include.ledger.intervals.pins import Neighbours
from include.ledger.streams.generations import Rest
from include.offsets import Fate, OffsetRange
from include.pipelines.spec import Pipeline
from include.times import Interval, utc


def rest_of(pipeline: Pipeline, topic: str) -> Rest | None:
    """Return a topic's archived offsets that are in no interval yet as one interval: no more records will follow.

    It comes after the last pinned interval, or is that of the first archived record. None when nothing is left.
    """
    log = _closed_log(pipeline, topic)
    last = pins.last_interval(pipeline.name)
    ranges = _ranges(log, Neighbours(last, None))
    if not any(map(len, ranges)):
        return None
    begin = last.interval.to_time if last else pipeline.schedule.floor(_first_archived(pipeline, ranges))
    return Rest(Interval(begin, pipeline.schedule.floor(begin) + pipeline.schedule.every), ranges, log.topic_ids)


def pin_gaps(pipeline: Pipeline, topic: str, *, pinned_by: str) -> list[Interval]:
    """Pin what was left for later of the topic between pinned intervals, and return the intervals.

    Each gap that has offsets of it becomes the interval before the next pinned one, with what other topics have there:
    the times of its records are not known any more. The caller holds the pipeline's lease. Each interval is a
    transaction, so a repetition pins only what is left.
    """
    log, written = _closed_log(pipeline, topic), []
    every = pipeline.schedule.every
    for gap in missing.find_gaps(pipeline.name):
        ranges = _ranges(log, gap)
        if gap.after is not None and any(len(each) for each in ranges if each.topic_partition.topic == topic):
            end = gap.after.interval.from_time
            begin = max(end - every, gap.before.interval.to_time) if gap.before else end - every
            topic_ids = gap.after.topic_ids
            pinned = pins.write_interval(
                pipeline.name, Interval(begin, end), ranges, topic_ids, pinned_by=pinned_by, between=gap
            )
            written += [pinned.interval] if pinned else []
    return written


def _closed_log(pipeline: Pipeline, topic: str) -> SourceLog:
    """Return the archived part of the closed topic as a log; the pipeline's other topics are empty in it."""
    ends = {tp: (0, end if tp.topic == topic else 0) for tp, end in positions(pipeline.name).items()}
    return SourceLog(pipeline, ends, stored_topics(pipeline.name), clock())


def _ranges(log: SourceLog, gap: Neighbours) -> list[OffsetRange]:
    return [OffsetRange(tp, *span) for tp, span in sorted(log.spans_between(gap).items())]


def _first_archived(pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> datetime:
    """Return the earliest record timestamp in the files that hold the beginnings of the ranges."""
    begins = [replace(r, until_offset=r.from_offset + 1) for r in ranges if len(r)]
    earliest = []
    for fate in (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED):
        for path in files_covering(pipeline.name, begins, fate):
            bounds = lake.column_bounds(lake.read_footer(lake.uri(path)), "kafka_timestamp")
            if bounds is not None and isinstance(bounds[0], datetime):
                earliest.append(utc(bounds[0]))
    return min(earliest, default=clock() - pipeline.schedule.every)
