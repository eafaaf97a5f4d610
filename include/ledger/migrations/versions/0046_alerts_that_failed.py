"""When a channel failed with an alert

Revision ID: 0046
Revises: 0045
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    comment = "By channel: when it was last tried there in vain, by the ledger's clock"
    op.add_column("alerts", sa.Column("failed", JSONB(), server_default=sa.text("'{}'"), nullable=False, comment=comment))


def downgrade() -> None:
    """Revert."""
    op.drop_column("alerts", "failed")
