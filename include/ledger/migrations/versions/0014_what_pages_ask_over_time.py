"""Questions over a month: counts of builds, results of expectations and reasons of quarantine as rows of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COUNTS = (
    sa.Column("matched", sa.BigInteger(), comment="Reconciliation: sides that agree; a copy from the findings"),
    sa.Column("pending", sa.BigInteger(), comment="Reconciliation: differences that other intervals explain"),
    sa.Column("late", sa.BigInteger(), comment="Reconciliation: rows that arrived after their window was closed"),
    sa.Column("unexplained", sa.BigInteger(), comment="Reconciliation: differences that nothing explains"),
)
PASSED = sa.Column("passed", sa.Boolean(), comment="Whether its checkpoint passed; null: not judged")

_COPY_COUNTS = """
UPDATE builds SET
    matched = (findings #>> '{reconciliation,matched}')::bigint,
    pending = (findings #>> '{reconciliation,pending}')::bigint,
    late = (findings #>> '{reconciliation,late}')::bigint,
    unexplained = (findings #>> '{reconciliation,unexplained}')::bigint,
    passed = (findings #>> '{validation,success}')::boolean
"""

_COPY_EXPECTATIONS = """
INSERT INTO expectation_results
    (build_id, number, table_name, expectation, column_name, words, success, observed, unexpected_count)
SELECT builds.id, found.number - 1, found.it ->> 'table', found.it ->> 'expectation', found.it ->> 'column',
       found.it ->> 'words', (found.it ->> 'success')::boolean, found.it ->> 'observed',
       (found.it ->> 'unexpected_count')::bigint
FROM builds, jsonb_array_elements(builds.findings -> 'expectations') WITH ORDINALITY AS found(it, number)
"""


def upgrade() -> None:
    """Apply; what earlier code kept in the findings alone is copied."""
    for column in (*COUNTS, PASSED):
        op.add_column("builds", column.copy())
    _create_expectation_results()
    op.execute(_COPY_COUNTS)
    op.execute(_COPY_EXPECTATIONS)
    op.create_table(
        "quarantine_counts",
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False, comment="Start of the hour of the commit"),
        sa.Column("reason", sa.String(), nullable=False, comment="Reason code"),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="How many records"),
        sa.Column(
            "last_batch", sa.BigInteger(), nullable=False, comment="The last micro-batch that brought one of them"
        ),
        sa.PrimaryKeyConstraint("pipeline", "hour", "reason", name=op.f("pk_quarantine_counts")),
        comment="Records that came into quarantine, by the hour of their commit and by reason",
    )
    op.create_index(
        "ix_landing_files_quarantined",
        "landing_files",
        ["micro_batch_id"],
        postgresql_where=sa.text("fate = 'quarantined'"),
    )


def _create_expectation_results() -> None:
    op.create_table(
        "expectation_results",
        sa.Column("build_id", sa.BigInteger(), nullable=False, comment="The build"),
        sa.Column(
            "number", sa.BigInteger(), nullable=False, autoincrement=False, comment="Its place in the suite, from 0"
        ),
        sa.Column("table_name", sa.String(), nullable=False, comment="Table in the catalog database lake"),
        sa.Column(
            "expectation",
            sa.String(),
            nullable=False,
            comment="Type of the expectation, as Great Expectations names it",
        ),
        sa.Column(
            "column_name", sa.String(), nullable=False, comment="Its columns; empty for one about the whole table"
        ),
        sa.Column("words", sa.String(), nullable=False, comment="The expectation as a sentence"),
        sa.Column("success", sa.Boolean(), nullable=False, comment="Whether it was met"),
        sa.Column("observed", sa.String(), nullable=False, comment="What it observed, as text"),
        sa.Column("value", sa.Float(), comment="What it observed as a number; of rows: the share that met it"),
        sa.Column("low", sa.Float(), comment="The least value with which it is met"),
        sa.Column("high", sa.Float(), comment="The greatest value with which it is met"),
        sa.Column("unexpected_count", sa.BigInteger(), nullable=False, comment="Rows that did not meet it"),
        sa.Column("checked", sa.BigInteger(), comment="Rows that it looked at; null: not told"),
        sa.ForeignKeyConstraint(
            ["build_id"], ["builds.id"], name=op.f("fk_expectation_results_build_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("build_id", "number", name=op.f("pk_expectation_results")),
        comment="What each expectation found in each build; a copy from the findings, for questions over time",
    )
    op.create_index("ix_expectation_results_table", "expectation_results", ["table_name", "build_id"])


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_landing_files_quarantined", "landing_files")
    op.drop_table("quarantine_counts")
    op.drop_table("expectation_results")
    for column in (PASSED, *reversed(COUNTS)):
        op.drop_column("builds", column.name)
