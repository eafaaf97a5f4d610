"""Outputs of rows: where they have sent them

Revision ID: 0056
Revises: 0055
"""

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "row_outputs",
        sa.Column(
            "target",
            sa.String(),
            server_default="",
            nullable=False,
            comment="Where its rows go; empty: not noted then",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("row_outputs", "target")
