"""Topics that a pipeline has stopped reading

Revision ID: 0045
Revises: 0044
"""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

COMMENTS = {
    "left_at": "When the pipeline stopped reading it, after which its archive does not grow; null: it is read",
    "left_by": "user@host that said so",
    "left_for": "Why",
}


def upgrade() -> None:
    """Apply."""
    for name, comment in COMMENTS.items():
        kind = sa.DateTime(timezone=True) if name == "left_at" else sa.String()
        op.add_column("topics", sa.Column(name, kind, nullable=True, comment=comment))


def downgrade() -> None:
    """Revert."""
    for name in COMMENTS:
        op.drop_column("topics", name)
