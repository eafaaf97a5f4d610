"""Proofs of registered intervals: which were written, in the order of their chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "proofs",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order of the chain"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("build_id", sa.BigInteger(), nullable=False, comment="The build that was registered"),
        sa.Column("tables", JSONB(), nullable=False, comment="Tables whose chains it continues"),
        sa.Column("path", sa.String(), nullable=False, comment="Path of its file below the lake"),
        sa.Column("sha256", sa.String(), nullable=False, comment="SHA-256 of the file"),
        sa.Column("signed_by", sa.String(), nullable=True, comment="Public key, in hexadecimal; null: unsigned"),
        sa.Column(
            "written_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="When it was written",
        ),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"], name="fk_proofs_build_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_proofs"),
        sa.UniqueConstraint("build_id", name="uq_proofs_build_id"),
        comment="Proofs of registered intervals in the order of their chain; only ever added to",
    )
    op.create_index("ix_proofs_pipeline", "proofs", ["pipeline", "id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("proofs")
