"""Limits of flags that an erasure took out of their version

Revision ID: 0039
Revises: 0038
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_BEFORE = "Limits that flags are raised by, as the batch layer learned them; never changed"
_AFTER = "Limits that flags are raised by, as the batch layer learned them; only an erasure changes them"


def upgrade() -> None:
    """Apply."""
    op.create_table_comment("limits_versions", _AFTER, existing_comment=_BEFORE)
    op.add_column(
        "limits_versions",
        sa.Column(
            "erased_rules",
            JSONB,
            nullable=False,
            server_default="[]",
            comment="Rules that erasures took limits of: flags were raised by these before",
        ),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("limits_versions", "erased_rules")
    op.create_table_comment("limits_versions", _BEFORE, existing_comment=_AFTER)
