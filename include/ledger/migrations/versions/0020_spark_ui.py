"""Where a running driver's own web pages are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    column = sa.Column(
        "ui_address", sa.String(), server_default="", nullable=False, comment="Spark's own pages of it; empty: none"
    )
    op.add_column("writers", column)


def downgrade() -> None:
    """Revert."""
    op.drop_column("writers", "ui_address")
