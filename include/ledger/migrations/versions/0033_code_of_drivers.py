"""The modules that the driver of a stream runs

Revision ID: 0033
Revises: 0031
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0033"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "writers",
        sa.Column(
            "code",
            postgresql.JSONB(),
            server_default="{}",
            nullable=False,
            comment="Its modules: path to a hash of the file",
        ),
    )
    op.add_column(
        "writers",
        sa.Column(
            "replaced_for",
            sa.String(),
            server_default="",
            nullable=False,
            comment="Changed modules for which a driver was last replaced; empty: none",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("writers", "replaced_for")
    op.drop_column("writers", "code")
