"""An attempt may build more than once: its latest build counts, and registering it is one recorded intent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_STATE = "pinned, registered or failed"
_FORMER_STATE = "pinned, reconciled, registered or failed"


def upgrade() -> None:
    """Apply. What was built before becomes one build of its attempt, of which the newest revisions count."""
    op.create_table(
        "builds",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="Order in which they were noted"),
        sa.Column("attempt_id", sa.BigInteger(), nullable=False, comment="The attempt"),
        sa.Column("interval_id", sa.BigInteger(), nullable=False, comment="The interval"),
        sa.Column(
            "noted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When its revisions were noted",
        ),
        sa.Column(
            "findings",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="What it and its publication found",
        ),
        sa.Column(
            "changes",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="What registering it changes: table partitions to point, to drop and to keep; "
            "noted before the first",
        ),
        sa.Column(
            "registering_at", sa.DateTime(timezone=True), nullable=True, comment="When these changes were noted"
        ),
        sa.Column(
            "published_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When they were all made, or a later build was found published instead",
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_builds_attempt_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["interval_id"], ["intervals.id"], name=op.f("fk_builds_interval_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_builds")),
        comment="Builds of attempts: an attempt that is run again builds again, and its latest build counts",
    )
    op.create_index(op.f("ix_builds_attempt_id"), "builds", ["attempt_id"])
    op.create_index(op.f("ix_builds_interval_id"), "builds", ["interval_id"])
    op.create_index(
        "ix_builds_registering",
        "builds",
        ["interval_id"],
        postgresql_where=sa.text("registering_at IS NOT NULL AND published_at IS NULL"),
    )
    op.add_column(
        "revisions",
        sa.Column(
            "build_id", sa.BigInteger(), nullable=True, comment="The attempt's build that it belongs to"
        ),
    )
    op.create_foreign_key(
        op.f("fk_revisions_build_id"), "revisions", "builds", ["build_id"], ["id"], ondelete="CASCADE"
    )
    op.create_index(op.f("ix_revisions_build_id"), "revisions", ["build_id"])
    op.drop_index("ix_revisions_registering", table_name="revisions")
    op.alter_column("intervals", "state", comment=_STATE, existing_comment=_FORMER_STATE)
    for statement in (_BUILDS, _OLDER_BUILDS, _OF_BUILDS, _BEGUN):
        op.execute(statement)


_BUILDS = """
INSERT INTO builds (attempt_id, interval_id, noted_at, findings, published_at)
SELECT a.id, a.interval_id, a.started_at, a.verdict,
       CASE WHEN (a.verdict #>> '{validation,success}')::boolean
             AND NOT EXISTS (SELECT FROM revisions r WHERE r.attempt_id = a.id AND r.state = 'registering')
            THEN coalesce(a.ended_at, a.started_at) END
FROM attempts a
WHERE a.verdict ? 'reconciliation'
ORDER BY a.id
"""

_OLDER_BUILDS = """
UPDATE revisions r SET state = 'discarded', retired_at = now()
WHERE r.state IN ('built', 'validated') AND EXISTS (
    SELECT FROM revisions newer
    WHERE newer.attempt_id = r.attempt_id AND newer.table_name = r.table_name
      AND newer.table_partition = r.table_partition AND newer.built_at > r.built_at
)
"""

_OF_BUILDS = "UPDATE revisions r SET build_id = b.id FROM builds b WHERE b.attempt_id = r.attempt_id"

# A registration that was begun: what its attempt points, and what of the interval it no longer delivers.
_BEGUN = """
UPDATE builds b SET registering_at = now(), changes = jsonb_build_object(
    'points', (
        SELECT jsonb_agg(jsonb_build_object('table', r.table_name, 'partition', r.table_partition, 'revision', r.id))
        FROM revisions r WHERE r.build_id = b.id AND r.state = 'registering'
    ),
    'drops', (
        SELECT coalesce(jsonb_agg(
            jsonb_build_object('table', r.table_name, 'partition', r.table_partition, 'revision', r.id)), '[]'::jsonb)
        FROM revisions r
        WHERE r.interval_id = b.interval_id AND r.state = 'registered' AND NOT EXISTS (
            SELECT FROM revisions delivered
            WHERE delivered.build_id = b.id AND delivered.table_name = r.table_name
              AND delivered.table_partition = r.table_partition
        )
    ),
    'kept', (
        SELECT coalesce(jsonb_agg(
            jsonb_build_object('table', r.table_name, 'partition', r.table_partition, 'revision', r.id)), '[]'::jsonb)
        FROM revisions r WHERE r.build_id = b.id AND r.state = 'validated'
    )
)
WHERE EXISTS (SELECT FROM revisions r WHERE r.build_id = b.id AND r.state = 'registering')
"""


def downgrade() -> None:
    """Revert."""
    op.alter_column("intervals", "state", comment=_FORMER_STATE, existing_comment=_STATE)
    op.create_index(
        "ix_revisions_registering", "revisions", ["table_name"], postgresql_where=sa.text("state = 'registering'")
    )
    op.drop_index(op.f("ix_revisions_build_id"), table_name="revisions")
    op.drop_constraint(op.f("fk_revisions_build_id"), "revisions", type_="foreignkey")
    op.drop_column("revisions", "build_id")
    op.drop_table("builds")
