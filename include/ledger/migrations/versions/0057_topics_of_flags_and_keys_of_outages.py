"""The topic that a run of the flags' query writes to, and by which key and column a micro-batch looked for outages

Revision ID: 0057
Revises: 0056
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None

TITLES = "Titles of the reports whose outages were looked for in its rows; null: none"
WATCHED = "The reports whose outages were looked for in its rows: JSON of title, key and up, or the title alone; null: none"


def upgrade() -> None:
    """Apply."""
    comment = "Kafka's id of the topic that it writes flags to; null: not noted then"
    op.add_column("flag_runs", sa.Column("flags_topic_id", sa.String(), nullable=True, comment=comment))
    op.alter_column(
        "micro_batches", "watched", existing_type=JSONB(none_as_null=True), comment=WATCHED, existing_comment=TITLES
    )


def downgrade() -> None:
    """Revert."""
    op.alter_column(
        "micro_batches", "watched", existing_type=JSONB(none_as_null=True), comment=TITLES, existing_comment=WATCHED
    )
    op.drop_column("flag_runs", "flags_topic_id")
