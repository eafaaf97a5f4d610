"""Alerts: what operators are told of, once when it begins and once when it is over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order in which they were raised"),
        sa.Column("key", sa.String(), nullable=False, comment="What it is about; of one key, one alert is open at a time"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("alert", JSONB(), nullable=False, comment="what, place, todo and further facts, as they were told"),
        sa.Column("since", MOMENT, nullable=False, comment="Since when it is so"),
        sa.Column("raised_at", MOMENT, server_default=sa.func.now(), nullable=False, comment="When it was noticed"),
        sa.Column("closed_at", MOMENT, nullable=True, comment="When it was found to be over"),
        sa.Column("told", JSONB(), nullable=False, comment="By channel: when its beginning was told there"),
        sa.Column("told_closed", JSONB(), nullable=False, comment="By channel: when its end was told there"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
        comment="What operators are told of: once when it begins, once when it is over",
    )
    op.create_index(
        "ix_alerts_open", "alerts", ["key"], unique=True, postgresql_where=sa.text("closed_at IS NULL")
    )
    op.create_index("ix_alerts_pipeline", "alerts", ["pipeline"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("alerts")
