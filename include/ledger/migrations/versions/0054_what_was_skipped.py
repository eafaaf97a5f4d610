"""What some ledgers have never got: migrations that came before one that they already had.

On 2026-11-23 and 2026-11-24 the code had, for minutes, a later migration without an earlier one. A ledger that was
made then counts as migrated past the earlier one, which is applied here.

Revision ID: 0054
Revises: 0053
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

SPANS_OF_OFFSETS = "SELECT count(*) FROM pg_indexes WHERE indexname = 'ix_interval_ranges_span' AND indexdef LIKE '%int8range%'"


def _apply(earlier: str) -> None:
    context.script.get_revision(earlier).module.upgrade()


def upgrade() -> None:
    """Apply."""
    ledger = sa.inspect(op.get_bind())
    if not ledger.has_table("outages"):
        _apply("0021")
    if op.get_bind().scalar(sa.text(SPANS_OF_OFFSETS)):
        _apply("0022")
    if "erased_rules" not in {column["name"] for column in ledger.get_columns("limits_versions")}:
        _apply("0039")


def downgrade() -> None:
    """Revert: what was applied belongs to the earlier migrations, which take it back."""
