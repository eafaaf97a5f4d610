"""Landing files are found by event time through an index

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.execute(
        "CREATE INDEX ix_landing_files_event_times ON landing_files "
        "USING gist (tstzrange(event_time_min, event_time_max, '[]')) "
        "WHERE removed_at IS NULL AND outcome = 'archived'"
    )


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_landing_files_event_times", table_name="landing_files")
