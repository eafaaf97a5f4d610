"""A generation notes which column the archive's event time is.

Views have noted it among the facts of their queries. Where only an archive was declared, it is unknown until the
stream's next start.

Revision ID: 0059
Revises: 0057
"""

import sqlalchemy as sa
from alembic import op

revision = "0059"
down_revision = "0057"
branch_labels = None
depends_on = None

AS_OF_VIEWS = """
    UPDATE generations g SET event_time = noted.event_time
    FROM (
        SELECT pipeline, number, min(facts.value ->> 'event time') AS event_time
        FROM generations, json_each(fingerprints::json) facts
        GROUP BY pipeline, number
        -- Facts of a view that is no longer declared stay: they may be of another time.
        HAVING count(DISTINCT facts.value ->> 'event time') = 1
    ) noted
    WHERE noted.pipeline = g.pipeline AND noted.number = g.number AND g.number = (
        SELECT max(started.number) FROM generations started
        WHERE started.pipeline = g.pipeline AND started.fingerprints::jsonb ? 'archive'
    )
"""
"""Of the newest generation that has started, where its views agree; unknown otherwise."""


def upgrade() -> None:
    """Apply."""
    comment = "Column, or field of one, that was the archive's event time at the last start"
    op.add_column("generations", sa.Column("event_time", sa.String(), nullable=True, comment=comment))
    op.execute(AS_OF_VIEWS)


def downgrade() -> None:
    """Revert."""
    op.drop_column("generations", "event_time")
