"""A scrape reads totals, and an index leads to the last hour's micro-batches

Triggers keep the totals: they are those of all rows whoever writes these, a driver that runs older code included. The
writers of a pipeline's rows follow each other anyway, by the lock on pinning and by the stream's lease.

Revision ID: 0053
Revises: 0050
"""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0050"
branch_labels = None
depends_on = None

PIPELINE = "Name of the pipeline"

FILL = """
INSERT INTO pinned_counts (pipeline, intervals) SELECT pipeline, count(*) FROM intervals GROUP BY pipeline;
INSERT INTO quarantine_totals (pipeline, reason, records)
SELECT pipeline, reason, sum(records) FROM quarantine_counts GROUP BY pipeline, reason;
"""

# Without a row that is inserted, OLD is null, and without one that stays, NEW.
COUNTING = """
CREATE FUNCTION count_pinned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pinned_counts AS total (pipeline, intervals)
    VALUES (coalesce(NEW.pipeline, OLD.pipeline), CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END)
    ON CONFLICT (pipeline) DO UPDATE SET intervals = total.intervals + excluded.intervals;
    RETURN NULL;
END $$;
CREATE TRIGGER count_pinned AFTER INSERT OR DELETE ON intervals FOR EACH ROW EXECUTE FUNCTION count_pinned();
CREATE FUNCTION add_quarantined() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO quarantine_totals AS total (pipeline, reason, records)
    VALUES (coalesce(NEW.pipeline, OLD.pipeline), coalesce(NEW.reason, OLD.reason),
        coalesce(NEW.records, 0) - coalesce(OLD.records, 0))
    ON CONFLICT (pipeline, reason) DO UPDATE SET records = total.records + excluded.records;
    RETURN NULL;
END $$;
CREATE TRIGGER add_quarantined AFTER INSERT OR UPDATE OR DELETE ON quarantine_counts
FOR EACH ROW EXECUTE FUNCTION add_quarantined();
"""


def upgrade() -> None:
    """Apply."""
    # First: a stream's commit waits here already, not with its micro-batch written, for which this would wait.
    op.create_index("ix_micro_batches_committed", "micro_batches", ["pipeline", "query", "committed_at"])
    op.create_table(
        "pinned_counts",
        sa.Column("pipeline", sa.String(), nullable=False, comment=PIPELINE),
        sa.Column("intervals", sa.BigInteger(), nullable=False, comment="How many intervals are pinned, in any state"),
        sa.PrimaryKeyConstraint("pipeline", name=op.f("pk_pinned_counts")),
        comment="How many rows of `intervals` each pipeline has; kept by a trigger",
    )
    op.create_table(
        "quarantine_totals",
        sa.Column("pipeline", sa.String(), nullable=False, comment=PIPELINE),
        sa.Column("reason", sa.String(), nullable=False, comment="Reason code"),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="How many records"),
        sa.PrimaryKeyConstraint("pipeline", "reason", name=op.f("pk_quarantine_totals")),
        comment="Records that ever came into quarantine, the sums of `quarantine_counts`; kept by a trigger",
    )
    # Nobody writes between the sums and the triggers.
    op.execute("LOCK TABLE intervals, quarantine_counts IN SHARE ROW EXCLUSIVE MODE")
    op.execute(FILL)
    op.execute(COUNTING)


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_micro_batches_committed", table_name="micro_batches")
    op.execute("DROP TRIGGER add_quarantined ON quarantine_counts; DROP FUNCTION add_quarantined()")
    op.execute("DROP TRIGGER count_pinned ON intervals; DROP FUNCTION count_pinned()")
    op.drop_table("quarantine_totals")
    op.drop_table("pinned_counts")
