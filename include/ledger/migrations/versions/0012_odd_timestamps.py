"""Records whose timestamps are too far ahead to end an interval are counted beside its ranges."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COLUMNS = (
    sa.Column(
        "odd_timestamps",
        sa.BigInteger(),
        server_default="0",
        nullable=False,
        comment="Records passed over at pinning: timestamps too far ahead to end it",
    ),
    sa.Column("first_odd_offset", sa.BigInteger(), nullable=True, comment="The first of them"),
    sa.Column(
        "first_odd_timestamp",
        sa.BigInteger(),
        nullable=True,
        comment="Its timestamp, ms since 1970, as Kafka has it",
    ),
)


def upgrade() -> None:
    """Apply."""
    for column in COLUMNS:
        op.add_column("interval_ranges", column.copy())


def downgrade() -> None:
    """Revert."""
    for column in COLUMNS:
        op.drop_column("interval_ranges", column.name)
