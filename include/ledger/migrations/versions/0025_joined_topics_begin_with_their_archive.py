"""What is open of a topic that joined begins where its archive does, and not where it was first pinned

Revision ID: 0025
Revises: 0022
"""

from alembic import op

revision = "0025"
down_revision = "0022"
branch_labels = None
depends_on = None

WAITING = """
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
CROSS JOIN LATERAL ({begin}) opening
WHERE i.before_end < i.from_time AND opening.from_offset < r.from_offset
"""

BEGIN = """
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
"""

BEGIN_BEFORE = """
    SELECT coalesce(b.until_offset, 0) AS from_offset
    -- A topic partition that is new in a known topic begins at 0; one of a new topic begins where it was first pinned.
    WHERE EXISTS (SELECT FROM interval_ranges s
        WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id)
"""


def upgrade() -> None:
    """Apply."""
    op.execute(WAITING.format(begin=BEGIN))


def downgrade() -> None:
    """Revert."""
    op.execute(WAITING.format(begin=BEGIN_BEFORE))
