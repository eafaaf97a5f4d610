"""Numbers of tables' fields

Revision ID: 0040
Revises: 0039
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "field_numbers",
        sa.Column("table_name", sa.String(), primary_key=True, comment="Table in the catalog database lake"),
        sa.Column("path", sa.String(), primary_key=True, comment="The column, or the path of a field inside of one"),
        sa.Column("number", sa.BigInteger(), nullable=False, comment="By which files and the Iceberg table know it"),
        sa.Column(
            "given_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="When it got its number",
        ),
        sa.UniqueConstraint("table_name", "number"),
        comment="Numbers of the fields of Iceberg tables, each given once and never again",
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("field_numbers")
