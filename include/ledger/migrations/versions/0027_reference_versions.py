"""Contents of references that are read from tables, files and databases

Revision ID: 0027
Revises: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "reference_versions",
        sa.Column(
            "id",
            sa.BigInteger(),
            primary_key=True,
            comment="Order of reading; of a reference, the last one is newest",
        ),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("name", sa.String(), nullable=False, comment="Name of the reference"),
        sa.Column("sha256", sa.String(), nullable=False, comment="SHA-256 of its content, which names the kept file"),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="Number of its rows"),
        sa.Column("source", sa.String(), nullable=False, comment="Where it was read, without addresses and secrets"),
        sa.Column(
            "taken_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this content was first read, after another one or none",
        ),
        comment="Contents of references in the order in which their sources were found to hold them",
    )
    op.create_index("ix_reference_versions", "reference_versions", ["pipeline", "name", "id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("reference_versions")
