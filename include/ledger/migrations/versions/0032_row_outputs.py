"""Outputs of the archive's rows: how far each has sent, and rows that it could not send

Revision ID: 0032
Revises: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "row_outputs",
        sa.Column("pipeline", sa.String(), primary_key=True, comment="Name of the pipeline"),
        sa.Column("output", sa.String(), primary_key=True, comment="Name of the output"),
        sa.Column(
            "micro_batch_id",
            sa.BigInteger(),
            nullable=False,
            comment="The archive's last micro-batch that was sent",
        ),
        sa.Column(
            "replay", sa.BigInteger(), nullable=False, comment="Number of the last quarantine replay that was sent"
        ),
        sa.Column(
            "rows",
            sa.BigInteger(),
            nullable=False,
            comment="Rows sent in all, repeated ones counted once",
        ),
        sa.Column("refused", sa.BigInteger(), nullable=False, comment="Rows that could not be sent"),
        sa.Column("sent_at", sa.DateTime(timezone=True), comment="When something was sent last"),
        sa.Column(
            "waits_for",
            sa.String(),
            nullable=False,
            comment="Why nothing can be sent now; empty while it can",
        ),
        sa.Column(
            "waits_since", sa.DateTime(timezone=True), comment="Since when; null while something can be sent"
        ),
        comment="How far each output has sent the archive's rows, and what it waits for",
    )
    op.create_table(
        "refused_rows",
        sa.Column("id", sa.BigInteger(), primary_key=True, comment="Order in which they were noted"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("output", sa.String(), nullable=False, comment="Name of the output"),
        sa.Column("topic", sa.String(), nullable=False, comment="Name of the topic"),
        sa.Column("topic_id", sa.String(), nullable=False, comment="Kafka's topic id when the record was read"),
        sa.Column("topic_partition", sa.BigInteger(), nullable=False, comment="Number of the topic partition"),
        sa.Column("record_offset", sa.BigInteger(), nullable=False, comment="The record's offset"),
        sa.Column(
            "element",
            sa.BigInteger(),
            nullable=False,
            comment="The row's position in the message; -1: all rows of the record",
        ),
        sa.Column("reason", sa.String(), nullable=False, comment="Reason code"),
        sa.Column("detail", sa.String(), nullable=False, comment="What was wrong"),
        sa.Column(
            "refused_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was noted",
        ),
        sa.UniqueConstraint("pipeline", "output", "topic_id", "topic_partition", "record_offset", "element"),
        comment="Archived rows that an output could not send, and why",
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("refused_rows")
    op.drop_table("row_outputs")
