"""Why Airflow ended a driver

Revision ID: 0035
Revises: 0033
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "stream_launches",
        sa.Column(
            "ended_for", sa.String(), server_default="", nullable=False, comment="Why Airflow ended it; empty: it did not"
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("stream_launches", "ended_for")
