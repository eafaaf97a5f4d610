"""Completeness as views: until when each table and topic partition is complete, and what it waits for."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

WAITING = """
CREATE VIEW waiting_spans AS
WITH in_order AS (
    SELECT id, pipeline, from_time, to_time, state,
        lag(id) OVER preceding AS before_id, lag(to_time) OVER preceding AS before_end
    FROM intervals WINDOW preceding AS (PARTITION BY pipeline ORDER BY from_time)
)
SELECT i.pipeline, i.state AS kind, i.from_time, i.to_time, i.before_end,
    r.topic, r.topic_id, r.topic_partition, r.from_offset, r.until_offset
FROM in_order i LEFT JOIN interval_ranges r ON r.interval_id = i.id
WHERE i.state <> 'registered'
UNION ALL
SELECT i.pipeline, 'missing', i.before_end, i.from_time, i.before_end,
    r.topic, r.topic_id, r.topic_partition, coalesce(b.until_offset, 0), r.from_offset
FROM in_order i
JOIN interval_ranges r ON r.interval_id = i.id
LEFT JOIN interval_ranges b ON b.interval_id = i.before_id AND b.topic = r.topic AND b.topic_id = r.topic_id
    AND b.topic_partition = r.topic_partition
WHERE i.before_end < i.from_time AND coalesce(b.until_offset, 0) < r.from_offset
    -- A topic partition that is new in a known topic begins at 0; one of a new topic begins where it was first pinned.
    AND EXISTS (SELECT FROM interval_ranges s
        WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id)
"""

PIPELINES = """
CREATE VIEW pipeline_completeness AS
SELECT p.pipeline,
    CASE WHEN w.kind IS NULL OR w.before_end IS NOT NULL THEN p.first_begin END AS complete_from,
    CASE WHEN w.kind IS NULL THEN p.last_end ELSE w.before_end END AS complete_until,
    w.kind AS waits_for, w.from_time AS waits_from, w.to_time AS waits_to
FROM (SELECT pipeline, min(from_time) AS first_begin, max(to_time) AS last_end FROM intervals GROUP BY pipeline) p
LEFT JOIN (
    SELECT DISTINCT ON (pipeline) pipeline, kind, from_time, to_time, before_end
    FROM waiting_spans ORDER BY pipeline, to_time
) w ON w.pipeline = p.pipeline
"""

TABLES = """
CREATE VIEW table_completeness AS
SELECT t.table_name, c.pipeline,
    CASE WHEN t.first_begin < c.complete_until THEN greatest(t.first_begin, c.complete_from) END AS complete_from,
    CASE WHEN t.first_begin < c.complete_until THEN c.complete_until END AS complete_until,
    c.waits_for, c.waits_from, c.waits_to
FROM (
    SELECT r.table_name, i.pipeline, min(i.from_time) AS first_begin
    FROM revisions r JOIN intervals i ON i.id = r.interval_id
    WHERE r.registered_at IS NOT NULL GROUP BY r.table_name, i.pipeline
) t
JOIN pipeline_completeness c ON c.pipeline = t.pipeline
"""

TOPIC_PARTITIONS = """
CREATE VIEW topic_partition_completeness AS
SELECT l.pipeline, r.topic, r.topic_id, r.topic_partition,
    CASE WHEN w.kind IS NULL THEN l.to_time ELSE w.before_end END AS complete_until,
    coalesce(w.from_offset, r.until_offset) AS complete_offset,
    w.kind AS waits_for, w.from_time AS waits_from, w.to_time AS waits_to
FROM (SELECT DISTINCT ON (pipeline) id, pipeline, to_time FROM intervals ORDER BY pipeline, from_time DESC) l
JOIN interval_ranges r ON r.interval_id = l.id
LEFT JOIN (
    SELECT DISTINCT ON (pipeline, topic, topic_id, topic_partition) *
    FROM waiting_spans WHERE from_offset < until_offset
    ORDER BY pipeline, topic, topic_id, topic_partition, to_time
) w ON w.pipeline = l.pipeline AND w.topic = r.topic AND w.topic_id = r.topic_id
    AND w.topic_partition = r.topic_partition
"""

COMMENTS = {
    "waiting_spans": "What no table has yet, by topic partition: intervals that are not registered, and offsets that lie "
    "between pinned intervals; one row of null offsets for an interval without any",
    "pipeline_completeness": "From the first pinned interval on, until when all intervals are registered; null: the "
    "first one is not",
    "table_completeness": "Until when a table is complete: what a job that reads it should wait for",
    "topic_partition_completeness": "The same per topic partition of the last pinned interval, with the offset",
}

COLUMNS = {
    "kind": "pinned or failed: the state of the interval; missing: never pinned",
    "before_end": "End of the pinned interval before it; null: it is the first",
    "complete_from": "Start of the first interval",
    "complete_until": "All records before it, by their pinned intervals, are registered",
    "complete_offset": "All offsets below are registered",
    "waits_for": "What comes next: pinned, failed or missing; null: nothing is known to be open",
    "waits_from": "Where that begins",
    "waits_to": "Where that ends",
}

VIEWS = {
    "waiting_spans": (WAITING, ("kind", "before_end")),
    "pipeline_completeness": (PIPELINES, ("complete_from", "complete_until", "waits_for", "waits_from", "waits_to")),
    "table_completeness": (TABLES, ("complete_from", "complete_until", "waits_for", "waits_from", "waits_to")),
    "topic_partition_completeness": (
        TOPIC_PARTITIONS,
        ("complete_until", "complete_offset", "waits_for", "waits_from", "waits_to"),
    ),
}


def upgrade() -> None:
    """Apply."""
    for view, (definition, columns) in VIEWS.items():
        op.execute(definition)
        op.execute(f"COMMENT ON VIEW {view} IS '{COMMENTS[view]}'")
        for column in columns:
            op.execute(f"COMMENT ON COLUMN {view}.{column} IS '{COLUMNS[column]}'")


def downgrade() -> None:
    """Revert."""
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW {view}")
