"""Builds note whether the Delta table has their rows: whichever it lacks is found, however much later.

Of a pipeline that had such a table, the first publication put all registered rows into it. Since then the last published
build of an interval is in it if that was noted; the others are put into it, perhaps once more, by the next publication.

Revision ID: 0061
Revises: 0060
"""

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None

IN_DELTA = """
WITH published AS (
    SELECT b.id, b.published_at, b.findings ? 'delta' AS is_noted, i.pipeline,
        max(b.id) OVER (PARTITION BY b.interval_id) AS last
    FROM builds b JOIN intervals i ON i.id = b.interval_id
    WHERE b.published_at IS NOT NULL
), begun AS (
    SELECT pipeline, min(published_at) AS published_at FROM published WHERE is_noted GROUP BY pipeline
)
UPDATE builds SET in_delta = TRUE
FROM published p JOIN begun USING (pipeline)
WHERE p.id = builds.id AND (p.is_noted OR p.id < p.last OR p.published_at < begun.published_at)
"""

COMMENT = "Whether the archive's Delta table has what it registered, or what came later; false: it may lack it"


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "builds", sa.Column("in_delta", sa.Boolean(), server_default=sa.false(), nullable=False, comment=COMMENT)
    )
    op.execute(IN_DELTA)
    op.create_index(
        "ix_builds_not_in_delta",
        "builds",
        ["interval_id"],
        postgresql_where=sa.text("published_at IS NOT NULL AND NOT in_delta"),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_builds_not_in_delta", table_name="builds")
    op.drop_column("builds", "in_delta")
