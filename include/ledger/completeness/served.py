"""What serving a view needs from the ledger: its registered revisions, and which part of its speed view they hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg2.extensions import cursor

from include.ledger.archive.committed import first_offsets
from include.ledger.completeness import completeness, partition_completeness
from include.ledger.completeness.partials import closed_extents
from include.ledger.connection import reading
from include.offsets import TopicPartition

ALL = -(2**62)
"""Smaller than every version."""


@dataclass(frozen=True)
class ServedInterval:
    """An interval that is registered, or whose registered revision stays while it is pinned again."""

    id: int
    from_time: datetime
    to_time: datetime
    covers: bool
    """Whether all of its records are in the table; not while it is pinned again, nor when it was built by code that
    did not declare the view, or added its rows up by fewer key columns."""
    revision: str
    """Empty when it has no row in the table, or none by the whole key."""
    location: str
    rows: int
    lacks_measure: bool = False
    """Whether its rows were built before a measure was declared, of which they say nothing."""


@dataclass(frozen=True)
class ServedState:
    """The ledger at one moment."""

    intervals: tuple[ServedInterval, ...]
    complete_until: datetime | None
    offsets: tuple[tuple[TopicPartition, int], ...]
    """For each topic partition, the offset below which everything is registered."""
    unsettled: int
    """From this version on, a value of the speed view may hold records that are not registered."""
    is_whole: bool = False
    """For a total: whether registered intervals hold all that was archived below the offsets, from its beginning."""

    @property
    def lacking(self) -> tuple[int, ...]:
        """Intervals with rows that lack a measure; none while all rows do, for then no sum is one of a part of them."""
        with_rows = [each for each in self.intervals if each.rows]
        found = tuple(each.id for each in with_rows if each.lacks_measure)
        return found if len(found) < len(with_rows) else ()


_INTERVALS = """
    WITH delivered AS (
        SELECT r.interval_id, r.id, r.location, r.rows, coalesce(NOT b.columns ?& %(keys)s::text[], false) AS lacks_key,
            EXISTS (
                SELECT FROM jsonb_array_elements(%(measures)s) AS names
                WHERE NOT b.columns ?| ARRAY(SELECT jsonb_array_elements_text(names))
            ) AS lacks_measure
        FROM revisions r LEFT JOIN LATERAL (
            -- It looks up these builds alone, however many others there are.
            SELECT b.columns -> %(table)s AS columns FROM builds b WHERE b.id = r.build_id OFFSET 0
        ) AS b ON TRUE
        WHERE r.table_name = %(table)s AND r.state = 'registered'
    )
    -- Of a build by code that kept no columns nothing is known; then the first interval with rows tells since when.
    SELECT i.id, i.from_time, i.to_time,
        coalesce(
            i.state = 'registered' AND i.from_time >= t.first_begin AND coalesce(k.tables ? %(table)s, true)
                AND NOT coalesce(d.lacks_key, false), false),
        CASE WHEN d.lacks_key THEN '' ELSE coalesce(d.id, '') END,
        CASE WHEN d.lacks_key THEN '' ELSE coalesce(d.location, '') END,
        CASE WHEN d.lacks_key THEN 0 ELSE coalesce(d.rows, 0) END,
        coalesce(d.lacks_measure, false)
    FROM intervals i LEFT JOIN table_begins t ON t.pipeline = i.pipeline AND t.table_name = %(table)s
        LEFT JOIN delivered d ON d.interval_id = i.id
        LEFT JOIN declared_tables k ON k.id = i.declared
    WHERE i.pipeline = %(pipeline)s AND (i.state = 'registered' OR d.id IS NOT NULL) ORDER BY i.from_time
"""

_FILES = """
    SELECT id, ARRAY(SELECT jsonb_object_keys(files) ORDER BY 1) FROM revisions
    WHERE table_name = %s AND id = ANY(%s)
"""

_AT = """
    SELECT topic, topic_partition, topics.topic_id FROM positions LEFT JOIN topics USING (pipeline, topic)
    WHERE pipeline = %s AND query = %s
"""

_LAST = "SELECT batch_id FROM micro_batches WHERE pipeline = %s AND query = %s ORDER BY id DESC LIMIT 1"

_UNSETTLED = """
    SELECT min(first.batch_id)
    FROM unnest(%(topics)s::text[], %(numbers)s::bigint[], %(ids)s::text[], %(offsets)s::bigint[])
        AS registered (topic, topic_partition, topic_id, below)
    -- Stops at the first micro-batch of each topic partition, however many follow it: within a generation versions grow
    -- with offsets, and no value is left of an earlier one.
    CROSS JOIN LATERAL (
        SELECT b.batch_id
        FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id
        WHERE b.pipeline = %(pipeline)s AND b.query = %(view)s
            AND r.topic = registered.topic AND r.topic_partition = registered.topic_partition
            AND r.until_offset > registered.below AND r.until_offset > r.from_offset
            AND (registered.topic_id IS NULL OR r.topic_id = registered.topic_id)
        ORDER BY r.until_offset, b.batch_id
        LIMIT 1
    ) AS first
"""


_NOT_PINNED = """
    SELECT 1 FROM unnest(%(topics)s::text[], %(numbers)s::bigint[], %(ids)s::text[], %(offsets)s::bigint[])
        AS first (topic, topic_partition, topic_id, from_offset)
    -- Stops at the first range of each topic partition, however many follow it.
    LEFT JOIN LATERAL (
        SELECT r.from_offset FROM interval_ranges r JOIN intervals i ON i.id = r.interval_id
        WHERE i.pipeline = %(pipeline)s AND r.topic = first.topic AND r.topic_partition = first.topic_partition
            AND r.topic_id = first.topic_id
        ORDER BY r.from_offset LIMIT 1
    ) AS pinned ON TRUE
    WHERE pinned.from_offset IS NULL OR pinned.from_offset > first.from_offset LIMIT 1
"""

_HAS_RECORDS = "SELECT EXISTS (SELECT FROM interval_ranges WHERE interval_id = ANY(%s) AND archived > 0)"


def served_state(
    pipeline: str,
    view: str,
    table: str,
    *,
    is_total: bool = False,
    keys: Collection[str] = (),
    measures: Iterable[Sequence[str]] = (),
) -> ServedState:
    """Return what is registered of a view's table, in one snapshot.

    Rows of files without one of the columns `keys` are left out: they are of another key than the stream's. `measures`:
    by which names files may have each.
    """
    wanted = {"keys": list(keys), "measures": json.dumps([list(each) for each in measures])}
    with reading() as ledger:
        ledger.execute(_INTERVALS, {"pipeline": pipeline, "table": table, **wanted})
        intervals = tuple(ServedInterval(*row) for row in ledger.fetchall())
        offsets = tuple((each.topic_partition, each.complete_offset) for each in partition_completeness(pipeline))
        complete_until, unsettled = completeness(pipeline).complete_until, _unsettled(ledger, pipeline, view)
        is_whole = is_total and _is_whole(ledger, pipeline, intervals)
        return ServedState(intervals, complete_until, offsets, unsettled, is_whole)


def _is_whole(ledger: cursor, pipeline: str, intervals: Iterable[ServedInterval]) -> bool:
    """Return whether intervals begin where the archive does, and none with records was registered without a part."""
    first = first_offsets(ledger, pipeline)
    for each in closed_extents(pipeline):
        first[each.topic_partition, each.topic_id] = each.from_offset
    keys, offsets = list(first), list(first.values())
    ledger.execute(
        _NOT_PINNED,
        {
            "pipeline": pipeline,
            "topics": [tp.topic for tp, _ in keys],
            "numbers": [tp.partition for tp, _ in keys],
            "ids": [topic_id for _, topic_id in keys],
            "offsets": offsets,
        },
    )
    begins_later = ledger.fetchone() is not None
    ledger.execute(_HAS_RECORDS, [[each.id for each in intervals if not each.revision]])
    (is_without,) = ledger.fetchone() or (True,)
    return not is_without and not begins_later


def _unsettled(ledger: cursor, pipeline: str, view: str) -> int:
    """Return the first version of a micro-batch that has read a record which is not registered.

    A micro-batch that is not committed yet may have written already: it counts too.
    """
    ledger.execute(_LAST, [pipeline, view])
    last = ledger.fetchone()
    if last is None:
        return ALL
    registered = {
        each.topic_partition: (each.topic_id, each.complete_offset) for each in partition_completeness(pipeline)
    }
    ledger.execute(_AT, [pipeline, view])
    known: list[tuple[TopicPartition, str | None, int]] = []
    for topic, number, current in ledger.fetchall():
        tp = TopicPartition(topic, number)
        # Nothing is registered of a topic that no interval was pinned to yet, nor of one that was created again since.
        topic_id, below = registered.get(tp, (None, -1))
        known.append((tp, topic_id, below))
        if topic_id is not None and current not in (None, topic_id):
            known.append((tp, current, -1))
    ledger.execute(
        _UNSETTLED,
        {
            "pipeline": pipeline,
            "view": view,
            "topics": [tp.topic for tp, _, _ in known],
            "numbers": [tp.partition for tp, _, _ in known],
            "ids": [topic_id for _, topic_id, _ in known],
            "offsets": [below for _, _, below in known],
        },
    )
    first = ledger.fetchone()
    return int(last[0]) + 1 if first is None or first[0] is None else int(first[0])


def files_of_revisions(table: str, revisions: Collection[str]) -> dict[str, list[str]]:
    """Return the names of the files of registered revisions."""
    with reading() as ledger:
        ledger.execute(_FILES, [table, list(revisions)])
        return dict(ledger.fetchall())
