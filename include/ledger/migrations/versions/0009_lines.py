"""Lines of files and sockets, read instead of Kafka: there are no offsets, and the ledger says so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "line_sources",
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name that the run goes under"),
        sa.Column("declared_as", sa.String(), nullable=False, comment="Name of the declared pipeline"),
        sa.Column("kind", sa.String(), nullable=False, comment="files or socket"),
        sa.Column("guarantee", sa.String(), nullable=False, comment="What holds for its records, in words"),
        sa.Column(
            "first_started_at",
            sa.DateTime(timezone=True), server_default=sa.text("now()"),
            nullable=False,
            comment="When it was first started",
        ),
        sa.PrimaryKeyConstraint("pipeline", name=op.f("pk_line_sources")),
        comment="Pipelines run over lines of files or a socket: nothing of them has Kafka offsets",
    )
    op.create_table(
        "line_connections",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order in which they were opened"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name that the run goes under"),
        sa.Column("address", sa.String(), nullable=False, comment="socket://host:port"),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True), server_default=sa.text("now()"),
            nullable=False,
            comment="When it was opened",
        ),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True, comment="When its end was noted"),
        sa.Column(
            "lines",
            sa.BigInteger(),
            nullable=False,
            comment="Lines received and written to files of the lake",
        ),
        sa.Column(
            "cut_bytes",
            sa.BigInteger(),
            nullable=False,
            comment="Bytes behind the last whole line when it ended; dropped",
        ),
        sa.Column("ended", sa.String(), nullable=True, comment="How it ended, and whether something may be lost"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_line_connections")),
        comment="Connections over which lines were received, and how each ended",
    )
    op.create_table(
        "line_files",
        sa.Column(
            "id",
            sa.BigInteger(),
            nullable=False,
            comment="Order of reading; grows under the pipeline's lease",
        ),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name that the run goes under"),
        sa.Column("location", sa.String(), nullable=False, comment="URI of the file"),
        sa.Column(
            "bytes",
            sa.BigInteger(),
            nullable=False,
            comment="Its size when it was noted, bytes; it must not change",
        ),
        sa.Column(
            "modified_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Its modification time then: the arrival of its lines",
        ),
        sa.Column(
            "noted_at",
            sa.DateTime(timezone=True), server_default=sa.text("now()"),
            nullable=False,
            comment="When it was noted",
        ),
        sa.Column(
            "source_name",
            sa.String(),
            nullable=False,
            comment="What its lines are counted in: the file, or the connection",
        ),
        sa.Column(
            "first_line",
            sa.BigInteger(),
            nullable=False,
            comment="Number of its first line there; lines are counted from 1",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_line_files")),
        sa.UniqueConstraint("pipeline", "location", name=op.f("uq_line_files_pipeline_location")),
        comment="Files of lines in the order in which they are read, noted before anything reads them",
    )
    op.create_table(
        "line_spans",
        sa.Column("micro_batch_id", sa.BigInteger(), nullable=False, comment="The micro-batch"),
        sa.Column(
            "after_file",
            sa.BigInteger(),
            nullable=False,
            comment="Files of the pipeline behind this one were read ...",
        ),
        sa.Column("until_file", sa.BigInteger(), nullable=False, comment="... up to this one, included"),
        sa.ForeignKeyConstraint(
            ["micro_batch_id"], ["micro_batches.id"], name=op.f("fk_line_spans_micro_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("micro_batch_id", name=op.f("pk_line_spans")),
        comment="Which files of lines each micro-batch read; a query's spans follow each other",
    )
    op.create_table(
        "line_counts",
        sa.Column("micro_batch_id", sa.BigInteger(), nullable=False, comment="The micro-batch"),
        sa.Column("source_name", sa.String(), nullable=False, comment="URI of the file, or the connection"),
        sa.Column("from_line", sa.BigInteger(), nullable=False, comment="First line, included; counted from 1"),
        sa.Column("until_line", sa.BigInteger(), nullable=False, comment="Last line, excluded"),
        sa.Column("archived", sa.BigInteger(), nullable=False, comment="Lines with at least one archive row"),
        sa.Column("empty", sa.BigInteger(), nullable=False, comment="Valid lines with nothing to archive"),
        sa.Column("quarantined", sa.BigInteger(), nullable=False, comment="Lines in quarantine"),
        sa.ForeignKeyConstraint(
            ["micro_batch_id"], ["micro_batches.id"], name=op.f("fk_line_counts_micro_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("micro_batch_id", "source_name", name=op.f("pk_line_counts")),
        comment="Lines of committed micro-batches with the fate of each; these are no Kafka offsets",
    )
    op.create_index(op.f("ix_line_sources_declared_as"), "line_sources", ["declared_as"])
    op.create_index(op.f("ix_line_connections_pipeline"), "line_connections", ["pipeline"])
    op.create_index("ix_line_files_order", "line_files", ["pipeline", "id"])


def downgrade() -> None:
    """Revert."""
    for table in ("line_counts", "line_spans", "line_files", "line_connections", "line_sources"):
        op.drop_table(table)
