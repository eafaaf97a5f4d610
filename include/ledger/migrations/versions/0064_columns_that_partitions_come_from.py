"""A build notes from which columns the values of its partition columns come.

Of earlier builds it is unknown: until the next one is registered, another column is not noticed.

Revision ID: 0064
Revises: 0063
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    comment = (
        "The archive's further partition columns, each with the column of its values; null: without any, or noted by "
        "code that did not keep them"
    )
    op.add_column("builds", sa.Column("partition_by", JSONB(), nullable=True, comment=comment))


def downgrade() -> None:
    """Revert."""
    op.drop_column("builds", "partition_by")
