"""Builds of which nothing is left to prove are not looked at again

Revision ID: 0049
Revises: 0048
"""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None

# As `proofs.note_proved` does it for one pipeline.
PROVED = """
WITH counted AS (
    SELECT b.id, b.interval_id, jsonb_array_length(b.changes -> 'points') > 0
        OR jsonb_array_length(b.changes -> 'drops') > 0 AS has_changes
    FROM builds b
    WHERE b.published_at IS NOT NULL AND b.passed AND b.changes IS NOT NULL AND NOT EXISTS (
        SELECT FROM repins r WHERE r.interval_id = b.interval_id AND r.repinned_at > b.noted_at)
), made AS (
    SELECT interval_id, coalesce(max(id) FILTER (WHERE has_changes), min(id)) AS build
    FROM counted GROUP BY interval_id
)
UPDATE builds SET proved = TRUE
WHERE published_at IS NOT NULL AND (
    id NOT IN (SELECT id FROM counted)
    OR interval_id IN (SELECT m.interval_id FROM made m JOIN proofs p ON p.build_id = m.build))
"""

COMMENT = "Whether nothing is left to prove of it: the proof is written, or none is due; false: it may be"


def upgrade() -> None:
    """Apply."""
    op.add_column("builds", sa.Column("proved", sa.Boolean(), server_default=sa.false(), nullable=False, comment=COMMENT))
    op.execute(PROVED)
    op.create_index(
        "ix_builds_unproved",
        "builds",
        ["interval_id"],
        postgresql_where=sa.text("published_at IS NOT NULL AND NOT proved"),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_builds_unproved", table_name="builds")
    op.drop_column("builds", "proved")
