"""Timestamps of the last records of pinned ranges, by which a log that was truncated is told

Revision ID: 0043
Revises: 0042
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "interval_ranges",
        sa.Column(
            "last_timestamp",
            sa.BigInteger,
            nullable=True,
            comment="Timestamp of the record before until_offset when pinned, ms since 1970; null where none was visible",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("interval_ranges", "last_timestamp")
