"""Rows to notify of are kept with the build that lists them: only those of a registered build count.

Rows that are recorded are those of the interval's registered build, or of the one that is being registered. Where there
is none, they are of its latest build without anything unexplained.

Revision ID: 0060
Revises: 0059
"""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None

BEFORE = "What reports with notifications list per interval, and what was sent of it"
NOW = "What reports with notifications list per build, and what was sent of it"

OF_BUILDS = """
    UPDATE listed_rows l SET build_id = b.build
    FROM (
        SELECT interval_id, coalesce(
            max(id) FILTER (WHERE published_at IS NOT NULL OR registering_at IS NOT NULL),
            max(id) FILTER (WHERE coalesce(unexplained, 0) = 0)
        ) AS build
        FROM builds GROUP BY interval_id
    ) b
    WHERE b.interval_id = l.interval_id AND b.build IS NOT NULL
"""

NOT_REGISTERED = """
    DELETE FROM listed_rows l WHERE l.build_id <> coalesce(
        (SELECT max(id) FROM builds b WHERE b.interval_id = l.interval_id AND b.published_at IS NOT NULL), 0
    )
"""
"""Rows that earlier code would take for the interval's."""


def upgrade() -> None:
    """Apply."""
    comment = "The build that lists it; 0: noted before builds were"
    op.add_column("listed_rows", sa.Column("build_id", sa.BigInteger(), nullable=True, comment=comment))
    op.execute(OF_BUILDS)
    op.execute("UPDATE listed_rows SET build_id = 0 WHERE build_id IS NULL")
    op.drop_constraint(op.f("pk_listed_rows"), "listed_rows", type_="primary")
    op.create_primary_key(op.f("pk_listed_rows"), "listed_rows", ["interval_id", "report", "key", "build_id"])
    op.create_table_comment("listed_rows", NOW, existing_comment=BEFORE)


def downgrade() -> None:
    """Revert. What was sent of builds that were replaced is forgotten."""
    op.execute(NOT_REGISTERED)
    op.drop_constraint(op.f("pk_listed_rows"), "listed_rows", type_="primary")
    op.create_primary_key(op.f("pk_listed_rows"), "listed_rows", ["interval_id", "report", "key"])
    op.drop_column("listed_rows", "build_id")
    op.create_table_comment("listed_rows", BEFORE, existing_comment=NOW)
