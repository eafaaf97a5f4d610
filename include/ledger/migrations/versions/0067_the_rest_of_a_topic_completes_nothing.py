"""An interval with the rest of a deleted topic does not complete its time: the next one has the other records of it

Adopting a topic pins the rest in the same transaction, so both have its time.

Revision ID: 0067
Revises: 0066
"""

from importlib import import_module

from alembic import op

VERSIONS = "include.ledger.migrations.versions"
indexed = import_module(f"{VERSIONS}.0047_what_is_open_is_found_by_index")
waiting = import_module(f"{VERSIONS}.0065_no_gap_begins_before_the_archive")

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None

RESTS = """
UNION ALL
SELECT i.pipeline, 'rest', i.from_time, i.to_time, before.to_time, NULL, NULL, NULL, NULL, NULL
FROM topic_incarnations c JOIN intervals i ON i.pipeline = c.pipeline AND i.pinned_at = c.closed_at
LEFT JOIN LATERAL ({before}) before ON TRUE
WHERE i.state = 'registered' AND NOT EXISTS (
    SELECT FROM (
        SELECT n.state FROM intervals n
        WHERE n.pipeline = i.pipeline AND n.from_time > i.from_time AND NOT EXISTS (
            SELECT FROM topic_incarnations d WHERE d.pipeline = n.pipeline AND d.closed_at = n.pinned_at
        )
        ORDER BY n.from_time LIMIT 1
    ) AS next
    WHERE next.state = 'registered'
)
"""

# As in 0047, but for the rest.
TOPIC_PARTITIONS = """
CREATE OR REPLACE VIEW topic_partition_completeness AS
{named}
SELECT l.pipeline, r.topic, r.topic_id, r.topic_partition,
    CASE
        WHEN rest.kind IS NOT NULL AND coalesce(rest.to_time <= w.to_time, TRUE) THEN rest.before_end
        WHEN w.kind IS NULL THEN l.to_time ELSE w.before_end
    END AS complete_until,
    coalesce(w.from_offset, r.until_offset) AS complete_offset,
    w.kind AS waits_for, w.from_time AS waits_from, w.to_time AS waits_to
FROM (
    SELECT last.id, n.pipeline, last.to_time
    FROM named n CROSS JOIN LATERAL (
        SELECT id, to_time FROM intervals WHERE pipeline = n.pipeline ORDER BY from_time DESC LIMIT 1
    ) last
) l
JOIN interval_ranges r ON r.interval_id = l.id
LEFT JOIN LATERAL (
    SELECT kind, to_time, before_end FROM waiting_spans
    WHERE pipeline = l.pipeline AND kind = 'rest' ORDER BY to_time LIMIT 1
) rest ON TRUE
LEFT JOIN (
    SELECT DISTINCT ON (pipeline, topic, topic_id, topic_partition) *
    FROM waiting_spans WHERE from_offset < until_offset
    ORDER BY pipeline, topic, topic_id, topic_partition, to_time
) w ON w.pipeline = l.pipeline AND w.topic = r.topic AND w.topic_id = r.topic_id
    AND w.topic_partition = r.topic_partition
"""


def _replace_views(rests: str, topic_partitions: str) -> None:
    before, before_next = waiting.BEFORE.format(i="i"), waiting.BEFORE.format(i="n")
    begin = waiting.BEGIN.format(archive=waiting.ARCHIVE)
    op.execute(waiting.WAITING.format(before=before, before_next=before_next, begin=begin) + rests.format(before=before))
    op.execute(topic_partitions.format(named=indexed.NAMED))


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_intervals_pinned_at", "intervals", ["pipeline", "pinned_at"])
    _replace_views(RESTS, TOPIC_PARTITIONS)


def downgrade() -> None:
    """Revert."""
    _replace_views("", indexed.TOPIC_PARTITIONS)
    op.drop_index("ix_intervals_pinned_at", table_name="intervals")
