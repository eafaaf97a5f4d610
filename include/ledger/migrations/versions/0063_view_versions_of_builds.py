"""A build's view versions in a column of their own: a total asks for those of all intervals, and findings are long.

Revision ID: 0063
Revises: 0062
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None

COMMENT = "By a view's table, the version of the code that added it up: a part of the findings"


def upgrade() -> None:
    """Apply."""
    of_findings = sa.Computed("findings -> 'view_versions'", persisted=True)
    op.add_column("builds", sa.Column("view_versions", JSONB(), of_findings, nullable=True, comment=COMMENT))


def downgrade() -> None:
    """Revert."""
    op.drop_column("builds", "view_versions")
