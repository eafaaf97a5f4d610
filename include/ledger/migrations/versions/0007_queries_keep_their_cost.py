"""What an interval asks for is found through indexes, however much lies behind it

Revision ID: 0007
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0003"
branch_labels = None
depends_on = None

_EVENT_TIMES = (
    "CREATE INDEX ix_landing_files_event_times ON landing_files "
    "USING gist (tstzrange(event_time_min, event_time_max, '[]')) WHERE "
)


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_revisions_attempt_id", "revisions", ["attempt_id"])
    op.create_index(
        "ix_revisions_registering", "revisions", ["table_name"], postgresql_where=sa.text("state = 'registering'")
    )
    # Removed files count too where it is asked which code had a part in a time.
    op.drop_index("ix_landing_files_event_times", table_name="landing_files")
    op.execute(_EVENT_TIMES + "outcome = 'archived'")


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_landing_files_event_times", table_name="landing_files")
    op.execute(_EVENT_TIMES + "removed_at IS NULL AND outcome = 'archived'")
    op.drop_index("ix_revisions_registering", table_name="revisions")
    op.drop_index("ix_revisions_attempt_id", table_name="revisions")
