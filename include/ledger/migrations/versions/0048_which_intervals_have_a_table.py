"""Which intervals have a table is noted when they are registered

Revision ID: 0048
Revises: 0047
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

# As in 0044, by what is noted: for each set of tables that code declared, an index leads to its first and last interval.
TABLES = """
CREATE OR REPLACE VIEW table_completeness AS
SELECT t.table_name, c.pipeline,
    CASE WHEN b.begin < c.complete_until THEN greatest(b.begin, c.complete_from) END AS complete_from,
    CASE WHEN b.begin < c.complete_until THEN c.complete_until END AS complete_until,
    c.waits_for, c.waits_from, c.waits_to
FROM table_begins t
JOIN pipeline_completeness c ON c.pipeline = t.pipeline
CROSS JOIN LATERAL (
    SELECT greatest(
        least(t.first_begin, min(k.first_begin) FILTER (WHERE k.has_table)),
        max(k.last_end) FILTER (WHERE NOT k.has_table)) AS begin
    FROM (
        SELECT d.tables ? t.table_name AS has_table,
            (SELECT min(i.from_time) FROM intervals i WHERE i.declared = d.id AND i.state = 'registered')
                AS first_begin,
            (SELECT max(i.to_time) FROM intervals i
                WHERE i.declared = d.id AND i.state = 'registered' AND i.to_time <= c.complete_until) AS last_end
        FROM declared_tables d WHERE d.pipeline = t.pipeline
    ) k
) b
"""

TABLES_BEFORE = """
CREATE OR REPLACE VIEW table_completeness AS
SELECT t.table_name, c.pipeline,
    CASE WHEN b.begin < c.complete_until THEN greatest(b.begin, c.complete_from) END AS complete_from,
    CASE WHEN b.begin < c.complete_until THEN c.complete_until END AS complete_until,
    c.waits_for, c.waits_from, c.waits_to
FROM (
    SELECT r.table_name, i.pipeline, min(i.from_time) AS first_begin
    FROM revisions r JOIN intervals i ON i.id = r.interval_id
    WHERE r.registered_at IS NOT NULL GROUP BY r.table_name, i.pipeline
) t
JOIN pipeline_completeness c ON c.pipeline = t.pipeline
CROSS JOIN LATERAL (
    SELECT greatest(
        least(t.first_begin, min(k.from_time) FILTER (WHERE k.has_table)),
        max(k.to_time) FILTER (WHERE NOT k.has_table AND k.to_time <= c.complete_until)) AS begin
    FROM (
        SELECT DISTINCT ON (b.interval_id) i.from_time, i.to_time, b.columns ? t.table_name AS has_table
        FROM builds b JOIN intervals i ON i.id = b.interval_id
        WHERE i.pipeline = t.pipeline AND i.state = 'registered' AND b.published_at IS NOT NULL
        ORDER BY b.interval_id, b.id DESC
    ) k
) b
"""

BEGINS = """
INSERT INTO table_begins (pipeline, table_name, first_begin)
SELECT i.pipeline, r.table_name, min(i.from_time)
FROM revisions r JOIN intervals i ON i.id = r.interval_id
WHERE r.registered_at IS NOT NULL GROUP BY i.pipeline, r.table_name
"""

# Of each interval the last published build that has columns, unless a later one has none.
DECLARED = """
CREATE TEMPORARY TABLE last_declared ON COMMIT DROP AS
SELECT i.id, i.pipeline, (SELECT coalesce(jsonb_agg(name ORDER BY name COLLATE "C"), '[]') FROM jsonb_object_keys(b.columns) name) AS tables
FROM intervals i CROSS JOIN LATERAL (
    SELECT columns FROM builds WHERE interval_id = i.id AND published_at IS NOT NULL ORDER BY id DESC LIMIT 1
) b
WHERE b.columns IS NOT NULL;
INSERT INTO declared_tables (pipeline, tables) SELECT DISTINCT pipeline, tables FROM last_declared;
UPDATE intervals SET declared = d.id
FROM last_declared l JOIN declared_tables d ON d.pipeline = l.pipeline AND d.tables = l.tables
WHERE l.id = intervals.id
"""

INDEXES = {"ix_intervals_declared_begin": "from_time", "ix_intervals_declared_end": "to_time"}


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "table_begins",
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("table_name", sa.String(), nullable=False, comment="Table in the catalog database lake"),
        sa.Column(
            "first_begin",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Start of the first interval of which a revision was ever registered",
        ),
        sa.PrimaryKeyConstraint("pipeline", "table_name", name="pk_table_begins"),
        comment="Where the registered rows of each table begin; a row for every table that ever had some",
    )
    op.create_table(
        "declared_tables",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Surrogate key"),
        sa.Column("pipeline", sa.String(), nullable=False, comment="Name of the pipeline"),
        sa.Column("tables", JSONB(), nullable=False, comment="Names of the tables, in order"),
        sa.PrimaryKeyConstraint("id", name="pk_declared_tables"),
        comment="Sets of tables that code of a pipeline has declared",
    )
    op.create_index("ix_declared_tables_pipeline", "declared_tables", ["pipeline"])
    op.add_column(
        "intervals",
        sa.Column(
            "declared",
            sa.BigInteger(),
            nullable=True,
            comment="Tables that the code of its last published build declared; null: unknown, or nothing is published",
        ),
    )
    op.create_foreign_key("fk_intervals_declared", "intervals", "declared_tables", ["declared"], ["id"])
    op.execute(BEGINS)
    op.execute(DECLARED)
    for index, time in INDEXES.items():
        op.create_index(index, "intervals", ["declared", time], postgresql_where=sa.text("state = 'registered'"))
    op.execute(TABLES)
    op.execute("ANALYZE intervals")


def downgrade() -> None:
    """Revert."""
    op.execute(TABLES_BEFORE)
    for index in INDEXES:
        op.drop_index(index, table_name="intervals")
    op.drop_column("intervals", "declared")
    op.drop_table("declared_tables")
    op.drop_table("table_begins")
