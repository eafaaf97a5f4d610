"""A table is complete from where its intervals have it on, by what the code that built them declared

Revision ID: 0044
Revises: 0043
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

# What code declared that kept no columns is unknown: then the first interval with rows tells since when there is a
# table. An interval without rows has the table, too, if its code declared it; one whose code did not is a hole.
TABLES = """
CREATE OR REPLACE VIEW table_completeness AS
SELECT t.table_name, c.pipeline,
    CASE WHEN b.begin < c.complete_until THEN greatest(b.begin, c.complete_from) END AS complete_from,
    CASE WHEN b.begin < c.complete_until THEN c.complete_until END AS complete_until,
    c.waits_for, c.waits_from, c.waits_to
FROM (
    SELECT r.table_name, i.pipeline, min(i.from_time) AS first_begin
    FROM revisions r JOIN intervals i ON i.id = r.interval_id
    WHERE r.registered_at IS NOT NULL GROUP BY r.table_name, i.pipeline
) t
JOIN pipeline_completeness c ON c.pipeline = t.pipeline
CROSS JOIN LATERAL (
    SELECT greatest(
        least(t.first_begin, min(k.from_time) FILTER (WHERE k.has_table)),
        max(k.to_time) FILTER (WHERE NOT k.has_table AND k.to_time <= c.complete_until)) AS begin
    FROM (
        SELECT DISTINCT ON (b.interval_id) i.from_time, i.to_time, b.columns ? t.table_name AS has_table
        FROM builds b JOIN intervals i ON i.id = b.interval_id
        WHERE i.pipeline = t.pipeline AND i.state = 'registered' AND b.published_at IS NOT NULL
        ORDER BY b.interval_id, b.id DESC
    ) k
) b
"""

BEFORE = """
CREATE OR REPLACE VIEW table_completeness AS
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

BEGINS = "Start of the first interval from which on all have the table"


def upgrade() -> None:
    """Apply."""
    op.execute(TABLES)
    op.execute(f"COMMENT ON COLUMN table_completeness.complete_from IS '{BEGINS}'")


def downgrade() -> None:
    """Revert."""
    op.execute(BEFORE)
    op.execute("COMMENT ON COLUMN table_completeness.complete_from IS 'Start of the first interval'")
