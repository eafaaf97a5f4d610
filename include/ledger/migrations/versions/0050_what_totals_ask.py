"""What a view without a window asks is found by index

Revision ID: 0050
Revises: 0049
"""

from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_micro_batches_decoder", "micro_batches", ["query_id", "decoder_version"])
    op.create_index(
        "ix_interval_ranges_begin", "interval_ranges", ["topic", "topic_partition", "topic_id", "from_offset"]
    )


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_interval_ranges_begin", table_name="interval_ranges")
    op.drop_index("ix_micro_batches_decoder", table_name="micro_batches")
