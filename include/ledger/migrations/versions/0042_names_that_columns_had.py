"""Names that columns had before, as files of builds carry them

Revision ID: 0042
Revises: 0041
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "builds",
        sa.Column(
            "also_named",
            JSONB(none_as_null=True),
            nullable=True,
            comment="By table, former names that its files have besides, each with the column of the same values",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("builds", "also_named")
