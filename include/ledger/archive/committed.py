"""How far the archive and the other queries have committed, in plain SQL (`include/ledger/connection.py`)."""

from __future__ import annotations

from datetime import datetime

from psycopg2.extensions import cursor

from include.ledger.connection import reading
from include.offsets import TopicPartition

ARCHIVE = "archive"
"""Name of the archive query; a speed query is named after its view."""

FLAGS = "flags"
"""Name of the flag query."""

_POSITIONS = """
    SELECT p.query, p.topic, p.topic_partition, p.next_offset
    FROM positions p
    WHERE p.pipeline = %s AND NOT EXISTS (
        SELECT
        FROM micro_batch_ranges r
        JOIN topic_incarnations i ON i.pipeline = p.pipeline AND i.topic = r.topic AND i.topic_id = r.topic_id
        WHERE r.micro_batch_id = p.micro_batch_id AND r.topic = p.topic AND r.topic_partition = p.topic_partition
    )
"""

_BEGIN = """
        SELECT coalesce((
            -- The archive's first micro-batch names all topic partitions of its time.
            SELECT r.from_offset
            FROM micro_batch_ranges r
            WHERE r.topic = p.topic AND r.topic_partition = p.topic_partition AND r.topic_id = t.topic_id
                AND r.micro_batch_id = (
                    SELECT b.id FROM micro_batches b WHERE b.pipeline = p.pipeline AND b.query = p.query
                    ORDER BY b.id LIMIT 1
                )
        ), (
            -- Others came later. Stops at the first micro-batch of each, however many follow it; those of other
            -- pipelines that begin earlier in the topic are read before it.
            SELECT r.from_offset
            FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id
            WHERE b.pipeline = p.pipeline AND b.query = p.query
                AND r.topic = p.topic AND r.topic_partition = p.topic_partition AND r.topic_id = t.topic_id
            ORDER BY r.until_offset, r.from_offset
            LIMIT 1
        )) AS from_offset
"""

_FIRST = f"""
    SELECT p.topic, p.topic_partition, t.topic_id, first.from_offset
    FROM positions p
    JOIN topics t ON t.pipeline = p.pipeline AND t.topic = p.topic
    CROSS JOIN LATERAL ({_BEGIN}) AS first
    WHERE p.pipeline = %s AND p.query = 'archive' AND first.from_offset IS NOT NULL
"""

_FIRST_OF_RANGES = f"""
    SELECT p.topic, p.topic_partition, t.topic_id, first.from_offset
    FROM positions p
    JOIN interval_ranges t ON t.topic = p.topic AND t.topic_partition = p.topic_partition
    CROSS JOIN LATERAL ({_BEGIN}) AS first
    WHERE p.pipeline = %s AND p.query = 'archive' AND t.interval_id = %s AND first.from_offset IS NOT NULL
"""

_BEGUN = """
    SELECT jsonb_object_keys(fingerprints)
    FROM (SELECT fingerprints FROM generations WHERE pipeline = %s ORDER BY number DESC LIMIT 1) AS current
"""

_TOPICS = "SELECT topic, topic_id FROM topics WHERE pipeline = %s AND left_at IS NULL"

_FIRST_COMMIT = """
    SELECT committed_at FROM micro_batches WHERE pipeline = %s AND query = 'archive' ORDER BY id LIMIT 1
"""

_EMITTED = """
    SELECT max(batch_id) FROM micro_batches
    WHERE pipeline = %(pipeline)s AND query = %(view)s AND batch_id >= %(base)s AND (rows > 0 OR batch_id = %(base)s)
"""


def first_commit(pipeline: str) -> datetime | None:
    """Return when the archive's first micro-batch was committed; None before it."""
    with reading() as ledger:
        ledger.execute(_FIRST_COMMIT, [pipeline])
        row = ledger.fetchone()
        return row[0] if row else None


def read_topics(pipeline: str) -> dict[str, str]:
    """Return the ids of the topics that the pipeline has read and not left, by name."""
    with reading() as ledger:
        ledger.execute(_TOPICS, [pipeline])
        return dict(ledger.fetchall())


def committed_offsets(pipeline: str) -> dict[str, dict[TopicPartition, int]]:
    """Return the next offset that each query will commit, per topic partition, by the query's name.

    An offset that a query has reached in a topic which was deleted and created again since says nothing of the new one.
    """
    with reading() as ledger:
        ledger.execute(_POSITIONS, [pipeline])
        ends: dict[str, dict[TopicPartition, int]] = {}
        for query, topic, partition, offset in ledger.fetchall():
            ends.setdefault(query, {})[TopicPartition(topic, partition)] = offset
        return ends


def first_committed_offsets(pipeline: str) -> dict[TopicPartition, int]:
    """Return where the archive of each topic partition begins: the pipeline's declared start, as it was resolved.

    For a topic that was deleted and created again: where its current incarnation begins.
    """
    with reading() as ledger:
        return {tp: offset for (tp, _), offset in first_offsets(ledger, pipeline).items()}


def archived_partitions(pipeline: str) -> set[TopicPartition]:
    """Return the topic partitions of which the archive has read offsets; others may have a position, too."""
    firsts, ends = first_committed_offsets(pipeline), committed_offsets(pipeline).get(ARCHIVE, {})
    return {tp for tp, end in ends.items() if end > firsts.get(tp, end)}


def last_emitted(pipeline: str, view: str, base: int) -> int | None:
    """Return the version of the view's last micro-batch that changed keys, its generation's base included.

    None when nothing was committed in that generation, whose base has the version `base`.
    """
    with reading() as ledger:
        ledger.execute(_EMITTED, {"pipeline": pipeline, "view": view, "base": base})
        (version,) = ledger.fetchone() or (None,)
        return version


def first_offsets(ledger: cursor, pipeline: str) -> dict[tuple[TopicPartition, str], int]:
    """Return `first_committed_offsets` within a transaction, each with its topic's id."""
    ledger.execute(_FIRST, [pipeline])
    return _by_topic_partition(ledger)


def first_offsets_of_ranges(ledger: cursor, pipeline: str, interval: int) -> dict[tuple[TopicPartition, str], int]:
    """Return where the archive of each of an interval's topic partitions begins, also of a topic that is gone."""
    ledger.execute(_FIRST_OF_RANGES, [pipeline, interval])
    return _by_topic_partition(ledger)


def _by_topic_partition(ledger: cursor) -> dict[tuple[TopicPartition, str], int]:
    return {
        (TopicPartition(topic, partition), topic_id): offset for topic, partition, topic_id, offset in ledger.fetchall()
    }


def begun_queries(pipeline: str) -> frozenset[str]:
    """Return the archive, views and flags that a driver has begun in the current generation; none before its start."""
    with reading() as ledger:
        ledger.execute(_BEGUN, [pipeline])
        return frozenset(query for (query,) in ledger.fetchall())
