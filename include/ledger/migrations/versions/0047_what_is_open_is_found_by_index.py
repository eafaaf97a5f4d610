"""What is open of a pipeline is found without reading its history, nor that of others

Revision ID: 0047
Revises: 0046
"""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

# `OFFSET 0`: ranges are read for each gap; joined with all gaps at once, PostgreSQL might read those of all intervals.
WAITING = """
CREATE OR REPLACE VIEW waiting_spans AS
SELECT i.pipeline, i.state AS kind, i.from_time, i.to_time, before.to_time AS before_end,
    r.topic, r.topic_id, r.topic_partition, r.from_offset, r.until_offset
FROM intervals i
LEFT JOIN LATERAL ({before}) before ON TRUE
LEFT JOIN interval_ranges r ON r.interval_id = i.id
WHERE i.state <> 'registered'
UNION ALL
SELECT i.pipeline, 'missing', i.before_end, i.from_time, i.before_end,
    r.topic, r.topic_id, r.topic_partition, opening.from_offset, r.from_offset
FROM (
    SELECT n.id, n.pipeline, n.from_time, before.id AS before_id, before.to_time AS before_end
    FROM intervals n CROSS JOIN LATERAL ({before_next}) before
    WHERE NOT n.adjoins AND before.to_time < n.from_time
) i
CROSS JOIN LATERAL (
    SELECT r.topic, r.topic_id, r.topic_partition, r.from_offset, b.until_offset AS before_offset
    FROM interval_ranges r
    LEFT JOIN interval_ranges b ON b.interval_id = i.before_id AND b.topic = r.topic AND b.topic_id = r.topic_id
        AND b.topic_partition = r.topic_partition
    WHERE r.interval_id = i.id OFFSET 0
) r
CROSS JOIN LATERAL ({begin}) opening
WHERE opening.from_offset < r.from_offset
"""

BEFORE = """
    SELECT b.id, b.to_time FROM intervals b WHERE b.pipeline = {i}.pipeline AND b.from_time < {i}.from_time
    ORDER BY b.from_time DESC LIMIT 1
"""

# As in 0025.
BEGIN = """
    SELECT CASE
        WHEN r.before_offset IS NOT NULL THEN r.before_offset
        -- A topic partition that is new in a known topic begins at 0; one of a new topic where its archive does.
        WHEN EXISTS (SELECT FROM interval_ranges s
            WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id) THEN 0
        ELSE (SELECT m.from_offset
            FROM micro_batch_ranges m JOIN micro_batches c ON c.id = m.micro_batch_id
            WHERE c.pipeline = i.pipeline AND c.query = 'archive'
                AND m.topic = r.topic AND m.topic_partition = r.topic_partition AND m.topic_id = r.topic_id
            ORDER BY m.until_offset, m.from_offset LIMIT 1)
    END AS from_offset
"""

# The index leads from each pipeline to the next, however many intervals they have.
NAMED = """
WITH RECURSIVE named AS (
    (SELECT pipeline FROM intervals ORDER BY pipeline LIMIT 1)
    UNION ALL
    SELECT (SELECT i.pipeline FROM intervals i WHERE i.pipeline > n.pipeline ORDER BY i.pipeline LIMIT 1)
    FROM named n WHERE n.pipeline IS NOT NULL
)
"""

PIPELINES = """
CREATE OR REPLACE VIEW pipeline_completeness AS
{named}
SELECT p.pipeline,
    CASE WHEN w.kind IS NULL OR w.before_end IS NOT NULL THEN p.first_begin END AS complete_from,
    CASE WHEN w.kind IS NULL THEN p.last_end ELSE w.before_end END AS complete_until,
    w.kind AS waits_for, w.from_time AS waits_from, w.to_time AS waits_to
FROM (
    SELECT n.pipeline, times.first_begin, times.last_end
    FROM named n CROSS JOIN LATERAL (
        SELECT min(from_time) AS first_begin, max(to_time) AS last_end FROM intervals WHERE pipeline = n.pipeline
    ) times
    WHERE n.pipeline IS NOT NULL
) p
LEFT JOIN LATERAL (
    SELECT kind, from_time, to_time, before_end FROM waiting_spans
    WHERE pipeline = p.pipeline ORDER BY to_time LIMIT 1
) w ON TRUE
"""

TOPIC_PARTITIONS = """
CREATE OR REPLACE VIEW topic_partition_completeness AS
{named}
SELECT l.pipeline, r.topic, r.topic_id, r.topic_partition,
    CASE WHEN w.kind IS NULL THEN l.to_time ELSE w.before_end END AS complete_until,
    coalesce(w.from_offset, r.until_offset) AS complete_offset,
    w.kind AS waits_for, w.from_time AS waits_from, w.to_time AS waits_to
FROM (
    SELECT last.id, n.pipeline, last.to_time
    FROM named n CROSS JOIN LATERAL (
        SELECT id, to_time FROM intervals WHERE pipeline = n.pipeline ORDER BY from_time DESC LIMIT 1
    ) last
) l
JOIN interval_ranges r ON r.interval_id = l.id
LEFT JOIN (
    SELECT DISTINCT ON (pipeline, topic, topic_id, topic_partition) *
    FROM waiting_spans WHERE from_offset < until_offset
    ORDER BY pipeline, topic, topic_id, topic_partition, to_time
) w ON w.pipeline = l.pipeline AND w.topic = r.topic AND w.topic_id = r.topic_id
    AND w.topic_partition = r.topic_partition
"""

ADJOINING = """
UPDATE intervals SET adjoins = TRUE
FROM (SELECT id, lag(to_time) OVER (PARTITION BY pipeline ORDER BY from_time) AS before_end FROM intervals) b
WHERE b.id = intervals.id AND b.before_end = intervals.from_time
"""

WAITING_BEFORE = """
CREATE OR REPLACE VIEW waiting_spans AS
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
    r.topic, r.topic_id, r.topic_partition, opening.from_offset, r.from_offset
FROM in_order i
JOIN interval_ranges r ON r.interval_id = i.id
LEFT JOIN interval_ranges b ON b.interval_id = i.before_id AND b.topic = r.topic AND b.topic_id = r.topic_id
    AND b.topic_partition = r.topic_partition
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN b.until_offset IS NOT NULL THEN b.until_offset
        -- A topic partition that is new in a known topic begins at 0; one of a new topic where its archive does.
        WHEN EXISTS (SELECT FROM interval_ranges s
            WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id) THEN 0
        ELSE (SELECT m.from_offset
            FROM micro_batch_ranges m JOIN micro_batches c ON c.id = m.micro_batch_id
            WHERE c.pipeline = i.pipeline AND c.query = 'archive'
                AND m.topic = r.topic AND m.topic_partition = r.topic_partition AND m.topic_id = r.topic_id
            ORDER BY m.until_offset, m.from_offset LIMIT 1)
    END AS from_offset
) opening
WHERE i.before_end < i.from_time AND opening.from_offset < r.from_offset
"""

PIPELINES_BEFORE = """
CREATE OR REPLACE VIEW pipeline_completeness AS
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

TOPIC_PARTITIONS_BEFORE = """
CREATE OR REPLACE VIEW topic_partition_completeness AS
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

COMMENT = "Whether the pinned interval before it ends where it begins; false: it may not"


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "intervals", sa.Column("adjoins", sa.Boolean(), server_default=sa.false(), nullable=False, comment=COMMENT)
    )
    op.execute(ADJOINING)
    op.create_index(
        "ix_intervals_apart", "intervals", ["pipeline", "from_time"], postgresql_where=sa.text("NOT adjoins")
    )
    op.create_index(
        "ix_intervals_open", "intervals", ["pipeline", "from_time"], postgresql_where=sa.text("state <> 'registered'")
    )
    op.create_index("ix_intervals_end", "intervals", ["pipeline", "to_time"])
    op.create_index("ix_attempts_open", "attempts", ["interval_id"], postgresql_where=sa.text("ended_at IS NULL"))
    op.execute(WAITING.format(before=BEFORE.format(i="i"), before_next=BEFORE.format(i="n"), begin=BEGIN))
    op.execute(PIPELINES.format(named=NAMED))
    op.execute(TOPIC_PARTITIONS.format(named=NAMED))
    op.execute("ANALYZE intervals")


def downgrade() -> None:
    """Revert."""
    for definition in (WAITING_BEFORE, PIPELINES_BEFORE, TOPIC_PARTITIONS_BEFORE):
        op.execute(definition)
    op.drop_index("ix_attempts_open", table_name="attempts")
    for index in ("ix_intervals_end", "ix_intervals_open", "ix_intervals_apart"):
        op.drop_index(index, table_name="intervals")
    op.drop_column("intervals", "adjoins")
