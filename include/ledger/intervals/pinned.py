"""Pinned intervals as commands read them, in plain SQL (`include/ledger/connection.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from psycopg2.extensions import cursor

from include.ledger.connection import reading
from include.ledger.intervals.odd_timestamps import OddTimestamps
from include.ledger.intervals.states import IntervalState
from include.offsets import OffsetRange, TopicPartition
from include.times import Interval


@dataclass(frozen=True)
class PinnedInterval:
    """An interval with its offset ranges."""

    id: int
    pipeline: str
    interval: Interval
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    odd_timestamps: tuple[OddTimestamps, ...] = ()
    """By topic partition, of those that have any."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest pinned intervals on both sides of an interval."""

    before: PinnedInterval | None
    after: PinnedInterval | None


_OF_PIPELINE = """
    SELECT i.id, i.pipeline, i.from_time, i.to_time,
        r.topic, r.topic_partition, r.topic_id, r.from_offset, r.until_offset,
        r.odd_timestamps, r.first_odd_offset, r.first_odd_timestamp
    FROM intervals i LEFT JOIN interval_ranges r ON r.interval_id = i.id
    WHERE i.pipeline = %(pipeline)s AND {}
    ORDER BY i.from_time, r.topic, r.topic_partition
"""


def pinned_intervals(pipeline: str, from_time: datetime | None = None) -> list[PinnedInterval]:
    """Return all pinned intervals of the pipeline, or the one that begins then, in order."""
    condition = "TRUE" if from_time is None else "i.from_time = %(from_time)s"
    with reading() as ledger:
        return intervals_where(ledger, condition, pipeline=pipeline, from_time=from_time)


_NOTED_ENDS = """
    SELECT DISTINCT ON (r.topic_partition) r.topic_partition, r.until_offset - 1, r.last_timestamp
    FROM intervals i JOIN interval_ranges r ON r.interval_id = i.id
    WHERE i.pipeline = %(pipeline)s AND r.topic = %(topic)s AND r.topic_id = %(topic_id)s
        AND r.last_timestamp IS NOT NULL
    ORDER BY r.topic_partition, r.until_offset DESC
"""


def noted_ends(pipeline: str, topic: str, topic_id: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return offset and timestamp, in milliseconds, of the last record of a topic's incarnation that were noted."""
    with reading() as ledger:
        ledger.execute(_NOTED_ENDS, {"pipeline": pipeline, "topic": topic, "topic_id": topic_id})
        return {TopicPartition(topic, number): (offset, timestamp) for number, offset, timestamp in ledger.fetchall()}


_PINNED_AGAIN = """
    SELECT EXISTS (
        SELECT FROM repins r JOIN intervals i ON i.id = r.interval_id
        WHERE i.pipeline = %(pipeline)s AND i.from_time = %(from_time)s AND r.repinned_by = %(run_by)s
    )
"""


def has_pinned_again(pipeline: str, interval: Interval, run_by: str) -> bool:
    """Return whether `run_by`, e.g. `airflow <run id>`, has pinned the interval again."""
    with reading() as ledger:
        ledger.execute(_PINNED_AGAIN, {"pipeline": pipeline, "from_time": interval.from_time, "run_by": run_by})
        ((found,),) = ledger.fetchall()
        return bool(found)


_PUBLISHED_BY_RUN = """
    SELECT EXISTS (
        SELECT FROM attempts a JOIN attempts own ON own.interval_id = a.interval_id AND own.run_by = a.run_by
            JOIN builds b ON b.attempt_id = own.id
        WHERE a.id = %(attempt)s AND b.published_at IS NOT NULL
    )
"""


def run_has_published(attempt: int) -> bool:
    """Return whether the run that began an attempt, e.g. `airflow <run id>`, has published a build of its interval."""
    with reading() as ledger:
        ledger.execute(_PUBLISHED_BY_RUN, {"attempt": attempt})
        ((found,),) = ledger.fetchall()
        return bool(found)


_REGISTERED_SINCE = """
    SELECT EXISTS (
        SELECT FROM intervals i JOIN builds b ON b.interval_id = i.id
        WHERE i.pipeline = %(pipeline)s AND i.from_time = %(from_time)s AND i.to_time = %(to_time)s
            AND i.state = %(registered)s AND b.published_at > %(since)s
    )
"""


def is_registered_since(pipeline: str, interval: Interval, since: datetime) -> bool:
    """Return whether the interval is registered, and a build of it was published later than `since`."""
    asked = {"pipeline": pipeline, "from_time": interval.from_time, "to_time": interval.to_time, "since": since}
    with reading() as ledger:
        ledger.execute(_REGISTERED_SINCE, {**asked, "registered": IntervalState.REGISTERED.value})
        ((found,),) = ledger.fetchall()
        return bool(found)


def intervals_where(ledger: cursor, condition: str, **parameters: Any) -> list[PinnedInterval]:
    """Return the intervals of `pipeline` (a parameter) that meet an SQL condition over `intervals i`, in order."""
    ledger.execute(_OF_PIPELINE.format(condition), parameters)
    return list(_intervals(ledger.fetchall()))


def _intervals(rows: Iterable[tuple[Any, ...]]) -> Iterator[PinnedInterval]:
    for (key, pipeline, from_time, to_time), group in groupby(rows, key=lambda row: row[:4]):
        # An interval without any offsets has one row, of nulls.
        ranges = [row[4:] for row in group if row[4] is not None]
        yield PinnedInterval(
            key,
            pipeline,
            Interval(from_time, to_time),
            tuple(OffsetRange(TopicPartition(r[0], r[1]), r[3], r[4], r[2]) for r in ranges),
            {r[0]: r[2] for r in ranges},
            tuple(
                OddTimestamps(TopicPartition(r[0], r[1]), *r[5:])
                for r in ranges
                if r[6] is not None and r[7] is not None
            ),
        )
