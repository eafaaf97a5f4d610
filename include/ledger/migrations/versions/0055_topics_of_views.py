"""Which compacted topics a generation's speed views write: one that was created again lacks what they wrote before

Revision ID: 0055
Revises: 0054
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

COMMENT = "By speed view: Kafka's id of the compacted topic that it writes"


def upgrade() -> None:
    """Apply."""
    column = sa.Column("topics", JSONB(), server_default=sa.text("'{}'"), nullable=False, comment=COMMENT)
    op.add_column("generations", column)


def downgrade() -> None:
    """Revert."""
    op.drop_column("generations", "topics")
