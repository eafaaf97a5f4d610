"""What registered intervals hold of a view: its revisions, and the offsets that they sum up, in plain SQL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from include.ledger.connection import reading
from include.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class Partial:
    """A registered interval with its revision of a view's table."""

    interval_id: int
    ranges: tuple[OffsetRange, ...]
    """Its pinned ranges, each with its topic's id; those without an offset left out."""
    revision: str
    location: str
    files: dict[str, dict[str, object]]
    code_version: str


_REVISIONS = """
    SELECT i.id, v.id, v.location, v.files, v.code_version
    FROM revisions v JOIN intervals i ON i.id = v.interval_id
    WHERE v.table_name = %(table)s AND v.state = 'registered' AND i.state = 'registered'
        AND i.pipeline = %(pipeline)s AND i.id <> %(but)s AND NOT EXISTS (
            SELECT FROM erasures e
            WHERE e.pipeline = i.pipeline AND e.intervals @> to_jsonb(i.id) AND coalesce(v.build_id, 0) <= e.last_build)
    ORDER BY i.from_time
"""

_RANGES = """
    SELECT r.interval_id, r.topic, r.topic_partition, r.from_offset, r.until_offset, r.topic_id
    FROM interval_ranges r WHERE r.interval_id = ANY(%s) AND r.until_offset > r.from_offset
    ORDER BY r.interval_id, r.topic, r.topic_partition
"""

_EXTENTS = """
    SELECT r.topic, r.topic_partition, min(r.from_offset), max(r.until_offset), r.topic_id
    FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id
    WHERE b.pipeline = %(pipeline)s AND b.query = 'archive' AND r.topic_id IN (
        SELECT topic_id FROM topic_incarnations WHERE pipeline = %(pipeline)s)
    GROUP BY r.topic, r.topic_partition, r.topic_id ORDER BY r.topic, r.topic_partition
"""


def registered_partials(pipeline: str, table: str, but: int) -> list[Partial]:
    """Return the intervals with a registered revision of the view's table, one left out, in one snapshot.

    Excluded are intervals that are pinned again, whose revision has other ranges, and those that were built before the
    view was declared, or without a row of it, or before records of theirs were erased.
    """
    with reading() as ledger:
        ledger.execute(_REVISIONS, {"pipeline": pipeline, "table": table, "but": but})
        rows = ledger.fetchall()
        ledger.execute(_RANGES, [[row[0] for row in rows]])
        ranges: dict[int, list[OffsetRange]] = defaultdict(list)
        for interval, topic, partition, low, high, topic_id in ledger.fetchall():
            ranges[interval].append(OffsetRange(TopicPartition(topic, partition), low, high, topic_id))
    return [Partial(interval, tuple(ranges[interval]), *rest) for interval, *rest in rows]


def closed_extents(pipeline: str) -> list[OffsetRange]:
    """Return the archived offset ranges of topics that were deleted since."""
    with reading() as ledger:
        ledger.execute(_EXTENTS, {"pipeline": pipeline})
        return [
            OffsetRange(TopicPartition(topic, partition), low, high, topic_id)
            for topic, partition, low, high, topic_id in ledger.fetchall()
        ]
