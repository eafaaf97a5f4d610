"""Gaps of followed event streams: positions that a service refused, and what is missing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "event_gaps",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Surrogate key"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("stream", sa.String(), nullable=False, comment="URL of the stream, without secrets and query"),
        sa.Column("position", sa.String(), nullable=False, comment="SHA-256 of the stream and the refused position"),
        sa.Column("answer", sa.String(), nullable=False, comment="What the service answered"),
        sa.Column("from_at", MOMENT, nullable=False, comment="Time of the last event before the gap"),
        sa.Column("until_at", MOMENT, nullable=True, comment="Time of the first event after it; null: none came yet"),
        sa.Column(
            "found_at",
            MOMENT,
            server_default=sa.func.now(),
            nullable=False,
            comment="When the position was refused first",
        ),
        sa.Column("accepted_at", MOMENT, nullable=True, comment="When the follower went on after it"),
        sa.Column("accepted_by", sa.String(), nullable=True, comment="user@host that told it to"),
        sa.PrimaryKeyConstraint("id", name="pk_event_gaps"),
        sa.UniqueConstraint("pipeline", "position", name="uq_event_gaps_pipeline_position"),
        comment="Positions that a followed event stream refused as too old, and what is missing; kept for ever",
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("event_gaps")
