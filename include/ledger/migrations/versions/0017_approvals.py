"""Builds that failed only by warnings wait for a person's approval."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "approvals",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Grows; of a build, the last one counts"),
        sa.Column("build_id", sa.BigInteger(), nullable=False, comment="The build"),
        sa.Column("interval_id", sa.BigInteger(), nullable=False, comment="The interval"),
        sa.Column(
            "suite",
            sa.String(),
            nullable=False,
            comment="Version of what was expected; a decision is about no other",
        ),
        sa.Column("asked_at", MOMENT, server_default=sa.func.now(), nullable=False, comment="When it was asked"),
        sa.Column("warnings", JSONB(), nullable=False, comment="Expectations of severity warn that were not met"),
        sa.Column("approved", sa.Boolean(), nullable=True, comment="Whether it is registered; null: nobody has decided"),
        sa.Column("decided_at", MOMENT, nullable=True, comment="When it was decided"),
        sa.Column("decided_by", sa.String(), nullable=True, comment="user@host, or the user of Airflow"),
        sa.Column("reason", sa.String(), nullable=True, comment="Why"),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"], ondelete="CASCADE", name="fk_approvals_build_id"),
        sa.ForeignKeyConstraint(["interval_id"], ["intervals.id"], ondelete="CASCADE", name="fk_approvals_interval_id"),
        comment="Builds that failed only by warnings: what was asked, who decided what, and why",
    )
    op.create_index("ix_approvals_build_id", "approvals", ["build_id"])
    op.create_index("ix_approvals_interval_id", "approvals", ["interval_id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("approvals")
