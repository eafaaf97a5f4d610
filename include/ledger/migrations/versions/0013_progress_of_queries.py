"""What Spark tells of running queries is kept for pages and metrics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "query_progress",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order in which they were noted"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column(
            "query", sa.String(), nullable=False, comment="`archive`, `flags`, or the name of a speed view"
        ),
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Spark's batch number within the query"),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="When the micro-batch, or the look for new data, began",
        ),
        sa.Column("input_rows", sa.BigInteger(), nullable=False, comment="Records it read"),
        sa.Column("input_rate", sa.Float(), nullable=False, comment="Records that arrived per second"),
        sa.Column("processing_rate", sa.Float(), nullable=False, comment="Records that it worked off per second"),
        sa.Column("seconds", sa.Float(), nullable=False, comment="Duration in all, s"),
        sa.Column(
            "parts",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Duration of each part, s, by Spark's name of it",
        ),
        sa.Column(
            "watermark",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The query's watermark; null without one",
        ),
        sa.Column("state_rows", sa.BigInteger(), nullable=False, comment="Rows in its state store"),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False, comment="Memory that these take, bytes"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_query_progress")),
        comment="What Spark last told of each running query, for pages and metrics; only the newest rows are kept",
    )
    op.create_index("ix_query_progress_query", "query_progress", ["pipeline", "query", "id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("query_progress")
