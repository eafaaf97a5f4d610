"""Things whose noted outages an erasure deleted: rows of others may still find them down, or up again.

Revision ID: 0068
Revises: 0067
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    comment = "Of each outage that it deleted: report, salted SHA-256 of the thing, first and last micro-batch"
    op.add_column("erasures", sa.Column("outages", JSONB(), server_default="[]", nullable=False, comment=comment))


def downgrade() -> None:
    """Revert."""
    op.drop_column("erasures", "outages")
