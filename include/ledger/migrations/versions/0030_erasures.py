"""Erasures, the coordinates of erased records, and their fate beside the others

Revision ID: 0030
Revises: 0027
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0030"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    for table, comment in (
        ("micro_batch_ranges", "Records that were erased since; they had another fate before"),
        ("interval_ranges", "Records that were erased; they had another fate before"),
    ):
        op.add_column(
            table, sa.Column("erased", sa.BigInteger(), server_default="0", nullable=False, comment=comment)
        )
    op.create_table(
        "erasures",
        sa.Column("id", sa.BigInteger(), primary_key=True, comment="Order in which they were begun"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column(
            "columns",
            postgresql.JSONB(),
            nullable=False,
            comment="Paths inside archive rows that the keys were looked for in",
        ),
        sa.Column("reason", sa.String(), nullable=False, comment="Why"),
        sa.Column("begun_by", sa.String(), nullable=False, comment="user@host that asked for it"),
        sa.Column(
            "begun_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When its records were noted: from then on nobody reads them any more",
        ),
        sa.Column("salt", sa.String(), nullable=False, comment="Random salt of the hashes, in hexadecimal"),
        sa.Column("key_hashes", postgresql.JSONB(), nullable=False, comment="Salted SHA-256 of each key"),
        sa.Column(
            "counts", postgresql.JSONB(), nullable=False, comment="How many records, rows, files and intervals"
        ),
        sa.Column(
            "intervals",
            postgresql.JSONB(),
            nullable=False,
            comment="Intervals whose tables are built anew without them",
        ),
        sa.Column(
            "last_build",
            sa.BigInteger(),
            nullable=False,
            comment="Builds up to this one may hold erased rows and are not registered",
        ),
        sa.Column(
            "generation",
            sa.BigInteger(),
            nullable=True,
            comment="The stream's generation that it opened; null: no views",
        ),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When nothing of it was left to do; null: unfinished",
        ),
        comment="Erasures: who erased how much and why, never what; one at a time is under way in a pipeline",
    )
    op.create_index("ix_erasures_pipeline", "erasures", ["pipeline"])
    op.create_index(
        "ix_erasures_unfinished",
        "erasures",
        ["pipeline"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "erased_records",
        sa.Column("pipeline", sa.String(), primary_key=True, comment="Name of the pipeline"),
        sa.Column("topic", sa.String(), primary_key=True, comment="Name of the topic"),
        sa.Column("topic_partition", sa.BigInteger(), primary_key=True, comment="Number of the topic partition"),
        sa.Column("record_offset", sa.BigInteger(), primary_key=True, comment="The record's offset"),
        sa.Column("topic_id", sa.String(), primary_key=True, comment="Kafka's topic id"),
        sa.Column("fate", sa.String(), nullable=False, comment="The fate that it had before"),
        sa.Column("erasure_id", sa.BigInteger(), nullable=False, comment="The erasure"),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name="fk_erased_records_erasure_id"),
        comment="Coordinates of erased records; whatever reads them from Kafka again leaves them out",
    )
    op.create_index("ix_erased_records_erasure", "erased_records", ["erasure_id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("erased_records")
    op.drop_table("erasures")
    for table in ("interval_ranges", "micro_batch_ranges"):
        op.drop_column(table, "erased")
