"""Flags: limits that were learned, and from which offsets on they were in force."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "limits_versions",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="The version that a flag names"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column(
            "learned_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When they were learned",
        ),
        sa.Column(
            "learned_from",
            postgresql.JSONB(),
            nullable=False,
            comment="table, partition and revision that they come from",
        ),
        sa.Column("limits", postgresql.JSONB(), nullable=False, comment="rule, subject and number of each"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limits_versions")),
        comment="Limits that flags are raised by, as the batch layer learned them; never changed",
    )
    op.create_index("ix_limits_versions_pipeline", "limits_versions", ["pipeline", "id"])
    op.create_table(
        "flag_runs",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order of the starts"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column(
            "limits_version",
            sa.BigInteger(),
            nullable=True,
            comment="The limits that it uses; null: from here on nothing could be flagged",
        ),
        sa.Column("token", sa.BigInteger(), nullable=False, comment="Fencing token of the driver"),
        sa.Column(
            "rules_version", sa.String(), nullable=False, comment="Version of the decoding code and the rules"
        ),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was started",
        ),
        sa.ForeignKeyConstraint(["limits_version"], ["limits_versions.id"], name=op.f("fk_flag_runs_limits_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flag_runs")),
        comment="Starts of the queries that raise flags: by which limits and code, from where on",
    )
    op.create_table(
        "flag_run_starts",
        sa.Column("flag_run_id", sa.BigInteger(), nullable=False, comment="The run"),
        sa.Column("topic_id", sa.String(), nullable=False, comment="Kafka's topic id"),
        sa.Column("topic_partition", sa.BigInteger(), nullable=False, comment="Number of the topic partition"),
        sa.Column("from_offset", sa.BigInteger(), nullable=False, comment="First offset, included"),
        sa.ForeignKeyConstraint(
            ["flag_run_id"], ["flag_runs.id"], name=op.f("fk_flag_run_starts_flag_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("flag_run_id", "topic_id", "topic_partition", name=op.f("pk_flag_run_starts")),
        comment="From these offsets on a run's limits are in force, until a later run begins",
    )
    op.create_index(
        "ix_flag_run_starts_offsets", "flag_run_starts", ["topic_id", "topic_partition", "from_offset"]
    )


def downgrade() -> None:
    """Revert."""
    for table in ("flag_run_starts", "flag_runs", "limits_versions"):
        op.drop_table(table)
