"""Drivers that were handed over to YARN

Revision ID: 0037
Revises: 0034
"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "stream_launches",
        sa.Column(
            "application",
            sa.String(),
            server_default="",
            nullable=False,
            comment="Id of its application on YARN; empty for a process",
        ),
    )
    op.alter_column(
        "stream_launches",
        "log",
        existing_type=sa.String(),
        comment="Path of its log file on that host, or URL of its application's page",
        existing_comment="Path of its log file on that host",
    )


def downgrade() -> None:
    """Revert."""
    op.alter_column(
        "stream_launches",
        "log",
        existing_type=sa.String(),
        comment="Path of its log file on that host",
        existing_comment="Path of its log file on that host, or URL of its application's page",
    )
    op.drop_column("stream_launches", "application")
