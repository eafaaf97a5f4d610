"""What registered intervals hold of a view: its revisions, and the offsets that they sum up, in plain SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from include.ledger.connection import reading
from include.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class Partial:
    """A registered interval with its revision of a view's table."""

    interval_id: int
    revision: str
    """Empty, like its location and files, where the interval has no row of the view."""
    location: str
    files: dict[str, dict[str, object]]
    code_version: str
    """The code that last built and published the same rows: a run that gives equal ones keeps the older revision."""
    build_id: int
    """That build; 0 where it was not noted."""


@dataclass(frozen=True)
class Partials:
    """Registered intervals, and what they hold together."""

    parts: tuple[Partial, ...]
    ranges: tuple[OffsetRange, ...]
    """Their pinned ranges, each with its topic's id; those that meet are one."""


_PARTS = """
    WITH erased AS (
        SELECT listed.id::bigint AS interval_id, max(e.last_build) AS last_build
        FROM erasures e CROSS JOIN LATERAL jsonb_array_elements(e.intervals) AS listed (id)
        WHERE e.pipeline = %(pipeline)s GROUP BY 1
    ), held AS (
        SELECT v.interval_id, v.id AS revision, v.location, v.files,
            coalesce(last.code_version, v.code_version) AS code_version,
            coalesce(last.build_id, v.build_id, 0) AS build_id
        FROM revisions v LEFT JOIN LATERAL (
            SELECT same.code_version, b.id AS build_id FROM revisions same JOIN builds b ON b.id = same.build_id
            WHERE same.table_name = v.table_name AND same.table_partition = v.table_partition
                AND same.content_hash = v.content_hash AND b.published_at IS NOT NULL
            ORDER BY b.id DESC LIMIT 1) AS last ON TRUE
        WHERE v.table_name = %(table)s AND v.state = 'registered'
        UNION ALL
        -- A build by code that declared the view, and gave no row of it: also none that was not registered.
        SELECT i.id, '', '', '{}', last.code_version, last.build_id
        FROM intervals i JOIN declared_tables k ON k.id = i.declared CROSS JOIN LATERAL (
            SELECT a.code_version, b.id AS build_id FROM attempts a JOIN builds b ON b.attempt_id = a.id
            WHERE a.interval_id = i.id AND b.published_at IS NOT NULL ORDER BY b.id DESC LIMIT 1) AS last
        WHERE i.pipeline = %(pipeline)s AND i.state = 'registered' AND k.tables ? %(table)s AND NOT EXISTS (
            SELECT FROM revisions v WHERE v.interval_id = i.id AND v.table_name = %(table)s
                AND (v.state = 'registered' OR v.build_id = last.build_id))
    )
    SELECT h.interval_id, h.revision, h.location, h.files, h.code_version, h.build_id
    FROM held h JOIN intervals i ON i.id = h.interval_id LEFT JOIN erased e ON e.interval_id = i.id
    WHERE i.state = 'registered' AND i.pipeline = %(pipeline)s AND i.id <> ALL(%(but)s::bigint[])
        AND (e.interval_id IS NULL OR h.build_id > e.last_build)
        AND NOT EXISTS (
            SELECT FROM interval_ranges r
            LEFT JOIN unnest(%(topics)s::text[], %(numbers)s::bigint[], %(offsets)s::bigint[])
                AS read (topic, topic_partition, until_offset)
                ON read.topic = r.topic AND read.topic_partition = r.topic_partition
            WHERE r.interval_id = i.id AND r.until_offset > r.from_offset AND r.topic_id <> ALL(%(closed)s::text[])
                AND r.until_offset > coalesce(read.until_offset, 0))
    ORDER BY i.from_time
"""

_RANGES = """
    WITH held AS (
        SELECT r.topic, r.topic_partition, r.topic_id, r.from_offset, r.until_offset,
            max(r.until_offset) OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS end_before
        FROM interval_ranges r WHERE r.interval_id = ANY(%s) AND r.until_offset > r.from_offset
        WINDOW in_order AS (
            PARTITION BY r.topic, r.topic_partition, r.topic_id ORDER BY r.from_offset, r.until_offset)
    ), apart AS (
        SELECT *, count(*) FILTER (WHERE end_before IS NULL OR end_before < from_offset) OVER (
            PARTITION BY topic, topic_partition, topic_id ORDER BY from_offset, until_offset) AS stretch
        FROM held
    )
    SELECT topic, topic_partition, min(from_offset), max(until_offset), topic_id
    FROM apart GROUP BY topic, topic_partition, topic_id, stretch ORDER BY topic, topic_partition, min(from_offset)
"""

_OF_VIEW_VERSION = """
    SELECT id FROM builds WHERE id = ANY(%(builds)s) AND view_versions ->> %(table)s = %(version)s
"""

_WITH_CODE_CHANGES = """
    SELECT id FROM builds WHERE id = ANY(%s) AND EXISTS (
        SELECT FROM jsonb_each(coalesce(findings -> 'code_changes', '{}')) AS change WHERE change.value <> '0')
"""

_EXTENTS = """
    SELECT r.topic, r.topic_partition, min(r.from_offset), max(r.until_offset), r.topic_id
    FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id
    WHERE b.pipeline = %(pipeline)s AND b.query = 'archive' AND r.topic_id IN (
        SELECT topic_id FROM topic_incarnations WHERE pipeline = %(pipeline)s)
    GROUP BY r.topic, r.topic_partition, r.topic_id ORDER BY r.topic, r.topic_partition
"""


def registered_partials(
    pipeline: str, table: str, but: Collection[int], *, read: Mapping[TopicPartition, int], closed: Collection[str]
) -> Partials:
    """Return the registered intervals that hold their part of the view, without those in `but`, in one snapshot.

    Of these, the ones of which the speed view has read everything: up to the offsets `read`, and topics with the ids
    `closed` completely. A part may be without a row. Excluded are intervals that are pinned again, whose revision has
    other ranges, and those that were built before the view was declared, or before records of theirs were erased.
    """
    values = {
        "pipeline": pipeline,
        "table": table,
        "but": list(but),
        "topics": [tp.topic for tp in read],
        "numbers": [tp.partition for tp in read],
        "offsets": list(read.values()),
        "closed": list(closed),
    }
    with reading() as ledger:
        ledger.execute(_PARTS, values)
        parts = tuple(Partial(*row) for row in ledger.fetchall())
        ledger.execute(_RANGES, [[each.interval_id for each in parts]])
        ranges = tuple(
            OffsetRange(TopicPartition(topic, partition), low, high, topic_id)
            for topic, partition, low, high, topic_id in ledger.fetchall()
        )
    return Partials(parts, ranges)


def of_other_code(table: str, parts: Iterable[Partial], *, code: str, view: str) -> frozenset[int]:
    """Return the intervals whose parts of a view other code added up than that of the view version `view`.

    Builds whose view versions were not noted are of other code if their code version is another than `code`, which
    changes also with what is expected of the rows.
    """
    others = [each for each in parts if each.code_version != code]
    values = {"builds": [each.build_id for each in others], "table": table, "version": view}
    same: set[int] = set()
    if others:
        with reading() as ledger:
            ledger.execute(_OF_VIEW_VERSION, values)
            same = {build for (build,) in ledger.fetchall()}
    return frozenset(each.interval_id for each in others if each.build_id not in same)


def read_otherwise(parts: Iterable[Partial]) -> frozenset[int]:
    """Return the intervals whose parts were built from Kafka, with other rows than other code had landed.

    What the speed view's base counts of them is what was landed. Reads all that these builds found.
    """
    by_build = {each.build_id: each.interval_id for each in parts}
    with reading() as ledger:
        ledger.execute(_WITH_CODE_CHANGES, [list(by_build)])
        return frozenset(by_build[build] for (build,) in ledger.fetchall())


def closed_extents(pipeline: str) -> list[OffsetRange]:
    """Return the archived offset ranges of topics that were deleted since."""
    with reading() as ledger:
        ledger.execute(_EXTENTS, {"pipeline": pipeline})
        return [
            OffsetRange(TopicPartition(topic, partition), low, high, topic_id)
            for topic, partition, low, high, topic_id in ledger.fetchall()
        ]
