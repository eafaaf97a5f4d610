"""What becomes of a record is its fate: the columns named `outcome` are renamed, their rows stay."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = ("landing_files", "replays")


def upgrade() -> None:
    """Apply. PostgreSQL renames the column in the condition of the index over event times, too."""
    for table in TABLES:
        op.alter_column(table, "outcome", new_column_name="fate")


def downgrade() -> None:
    """Revert."""
    for table in TABLES:
        op.alter_column(table, "fate", new_column_name="outcome")
