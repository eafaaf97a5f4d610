"""A repin notes which builds it outdates: by their order, for the ledger's clock may be set back.

Of earlier ones only the times are known.

Revision ID: 0062
Revises: 0061
"""

import sqlalchemy as sa
from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None

BY_TIME = """
    UPDATE repins r SET last_build = coalesce(
        (SELECT max(b.id) FROM builds b WHERE b.interval_id = r.interval_id AND b.noted_at < r.repinned_at), 0
    )
"""

COMMENT = "Builds of the interval up to this one had other ranges; 0: there was none"


def upgrade() -> None:
    """Apply."""
    op.add_column("repins", sa.Column("last_build", sa.BigInteger(), nullable=True, comment=COMMENT))
    op.execute(BY_TIME)
    op.alter_column("repins", "last_build", nullable=False)


def downgrade() -> None:
    """Revert."""
    op.drop_column("repins", "last_build")
