"""What overlaps a range is found in its own topic partition, however many others have the same offsets

Revision ID: 0022
Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TABLES = ("micro_batch_ranges", "interval_ranges")


def _index(table: str, span: str) -> None:
    op.drop_index(f"ix_{table}_span", table_name=table)
    op.execute(f"CREATE INDEX ix_{table}_span ON {table} USING gist ({span})")


def upgrade() -> None:
    """Apply."""
    for table in _TABLES:
        _index(
            table,
            "numrange(topic_partition * 10000000000000000000::numeric + from_offset, "
            "topic_partition * 10000000000000000000::numeric + until_offset)",
        )
        # The planner knows nothing of an expression before.
        op.execute(f"ANALYZE {table}")


def downgrade() -> None:
    """Revert."""
    for table in _TABLES:
        _index(table, "int8range(from_offset, until_offset)")
