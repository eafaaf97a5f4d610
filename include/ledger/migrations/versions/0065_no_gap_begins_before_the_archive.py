"""What lies between pinned intervals begins no earlier than the archive, also after one without offsets

An interval may be pinned before the stream's first commit, which begins later in the topic.

Revision ID: 0065
Revises: 0064
"""

from alembic import op

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None

# As in 0047.
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

ARCHIVE = """
    coalesce((
        -- The archive's first micro-batch names all topic partitions of its time.
        SELECT m.from_offset FROM micro_batch_ranges m
        WHERE m.topic = r.topic AND m.topic_partition = r.topic_partition AND m.topic_id = r.topic_id
            AND m.micro_batch_id = (
                SELECT c.id FROM micro_batches c WHERE c.pipeline = i.pipeline AND c.query = 'archive'
                ORDER BY c.id LIMIT 1
            )
    ), (
        SELECT m.from_offset
        FROM micro_batch_ranges m JOIN micro_batches c ON c.id = m.micro_batch_id
        WHERE c.pipeline = i.pipeline AND c.query = 'archive'
            AND m.topic = r.topic AND m.topic_partition = r.topic_partition AND m.topic_id = r.topic_id
        ORDER BY m.until_offset, m.from_offset LIMIT 1
    ))
"""

BEGIN = """
    SELECT CASE
        WHEN r.before_offset = r.from_offset THEN r.before_offset
        -- A topic partition that is new in a known topic begins at 0; one of a new topic where its archive does. None
        -- begins before the archive: `greatest` passes over what is null.
        ELSE greatest(r.before_offset, CASE WHEN r.before_offset IS NULL AND EXISTS (SELECT FROM interval_ranges s
            WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id) THEN 0
        END, {archive})
    END AS from_offset
"""

BEGIN_BEFORE = """
    SELECT CASE
        WHEN r.before_offset IS NOT NULL THEN r.before_offset
        WHEN EXISTS (SELECT FROM interval_ranges s
            WHERE s.interval_id = i.before_id AND s.topic = r.topic AND s.topic_id = r.topic_id) THEN 0
        ELSE {archive}
    END AS from_offset
"""


def _replace_view(begin: str) -> None:
    before, before_next = BEFORE.format(i="i"), BEFORE.format(i="n")
    op.execute(WAITING.format(before=before, before_next=before_next, begin=begin.format(archive=ARCHIVE)))


def upgrade() -> None:
    """Apply."""
    _replace_view(BEGIN)


def downgrade() -> None:
    """Revert."""
    _replace_view(BEGIN_BEFORE)
