"""Notifications: what reports list per interval."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "listed_rows",
        sa.Column("interval_id", sa.BigInteger(), nullable=False, comment="The interval"),
        sa.Column("report", sa.String(), nullable=False, comment="Title of the report"),
        sa.Column("key", sa.String(), nullable=False, comment="JSON object of the report's key columns"),
        sa.Column("row", postgresql.JSONB(), nullable=False, comment="The row as it was listed"),
        sa.Column(
            "notified_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the operators were told of it",
        ),
        sa.ForeignKeyConstraint(
            ["interval_id"], ["intervals.id"], name=op.f("fk_listed_rows_interval_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("interval_id", "report", "key", name=op.f("pk_listed_rows")),
        comment="What reports with notifications list per interval, and what was sent of it",
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("listed_rows")
