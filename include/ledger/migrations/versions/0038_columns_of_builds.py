"""Columns of the tables that a build wrote

Revision ID: 0038
Revises: 0037
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "builds",
        sa.Column(
            "columns",
            JSONB(none_as_null=True),
            comment="By table, its declared columns with their types; null: noted by code that did not keep them",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("builds", "columns")
