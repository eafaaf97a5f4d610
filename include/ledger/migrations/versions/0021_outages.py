"""Outages: what the stream finds down and up again in archive rows, and what was told of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "micro_batches",
        sa.Column(
            "watched",
            JSONB(),
            nullable=True,
            comment="Titles of the reports whose outages were looked for in its rows; null: none",
        ),
    )
    op.create_table(
        "outages",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order in which they were found"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("report", sa.String(), nullable=False, comment="Title of the report"),
        sa.Column("key", sa.String(), nullable=False, comment="JSON object of the report's key columns"),
        sa.Column("micro_batch", sa.BigInteger(), nullable=False, comment="The micro-batch that found it down"),
        sa.Column("topic", sa.String(), nullable=False, comment="Topic of the first row that is down"),
        sa.Column("topic_id", sa.String(), nullable=False, comment="Kafka's id of that topic"),
        sa.Column("topic_partition", sa.BigInteger(), nullable=False, comment="Number of its topic partition"),
        sa.Column("record_offset", sa.BigInteger(), nullable=False, comment="Offset of its record"),
        sa.Column("element", sa.BigInteger(), nullable=False, comment="Its position inside the message"),
        sa.Column("began_at", MOMENT, nullable=False, comment="Timestamp of its record"),
        sa.Column("row", JSONB(), nullable=False, comment="Its columns, as the report names them"),
        sa.Column("told_at", MOMENT, nullable=True, comment="When the operators were told of it"),
        sa.Column("end_micro_batch", sa.BigInteger(), nullable=True, comment="The micro-batch that found it up again"),
        sa.Column(
            "end_topic", sa.String(), nullable=True, comment="Topic of the row that is up again; null: none came yet"
        ),
        sa.Column("end_topic_id", sa.String(), nullable=True, comment="Kafka's id of that topic"),
        sa.Column("end_partition", sa.BigInteger(), nullable=True, comment="Number of its topic partition"),
        sa.Column("end_offset", sa.BigInteger(), nullable=True, comment="Offset of its record"),
        sa.Column("end_element", sa.BigInteger(), nullable=True, comment="Its position inside the message"),
        sa.Column("ended_at", MOMENT, nullable=True, comment="Timestamp of its record"),
        sa.Column("end_row", JSONB(), nullable=True, comment="Its columns, as the report names them"),
        sa.Column("end_told_at", MOMENT, nullable=True, comment="When the operators were told that it is over"),
        sa.PrimaryKeyConstraint("id", name="pk_outages"),
        comment="Outages that the stream found in archive rows, noted with the micro-batch, and what was told",
    )
    op.create_index(
        "ix_outages_open",
        "outages",
        ["pipeline", "report", "key"],
        unique=True,
        postgresql_where=sa.text("end_offset IS NULL"),
    )
    op.create_index(
        "ix_outages_untold",
        "outages",
        ["pipeline", "id"],
        postgresql_where=sa.text("told_at IS NULL OR (end_offset IS NOT NULL AND end_told_at IS NULL)"),
    )
    op.create_index("ix_outages_end", "outages", ["pipeline", "report", "end_micro_batch"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("outages")
    op.drop_column("micro_batches", "watched")
