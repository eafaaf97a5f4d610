"""Errors with which drivers ended

Revision ID: 0041
Revises: 0040
"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "stream_launches",
        sa.Column(
            "error", sa.String(), server_default="", nullable=False, comment="The error with which it ended; empty: none was noted"
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("stream_launches", "error")
