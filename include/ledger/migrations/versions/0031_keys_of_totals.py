"""How many keys views without a window have

Revision ID: 0031
Revises: 0032
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "view_keys",
        sa.Column("pipeline", sa.String(), primary_key=True, comment="Name of the pipeline"),
        sa.Column("view", sa.String(), primary_key=True, comment="Name of the view"),
        sa.Column("keys", sa.BigInteger(), nullable=False, comment="How many keys it has"),
        sa.Column(
            "version", sa.BigInteger(), nullable=False, comment="The micro-batch after which they were counted"
        ),
        sa.Column(
            "counted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When they were counted",
        ),
        comment="How many keys each view without a window has, as its stream counted them last",
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("view_keys")
