"""A pipeline's lease notes which command holds it: one is not stopped as a driver is.

Revision ID: 0066
Revises: 0065
"""

import sqlalchemy as sa
from alembic import op

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    comment = "Command that holds it instead of a driver; empty: none"
    op.add_column("writers", sa.Column("command", sa.String(), server_default="", nullable=False, comment=comment))


def downgrade() -> None:
    """Revert."""
    op.drop_column("writers", "command")
