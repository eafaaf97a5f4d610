"""Which pinned intervals adjoin: by this, what lies between two of them is found without reading all."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from include.ledger.models import IntervalRow


def add_adjoining(ledger: Session, row: IntervalRow) -> None:
    """Add an interval, and note whether it begins where the one before it ends, and the one after it where it ends.

    In a transaction that holds the pinning lock.
    """
    of_pipeline = IntervalRow.pipeline == row.pipeline
    before = select(IntervalRow.to_time).where(of_pipeline, IntervalRow.from_time < row.from_time)
    after = select(IntervalRow.id).where(of_pipeline, IntervalRow.from_time > row.from_time)
    row.adjoins = ledger.scalar(before.order_by(IntervalRow.from_time.desc()).limit(1)) == row.from_time
    next_one = update(IntervalRow).where(
        IntervalRow.id == after.order_by(IntervalRow.from_time).limit(1).scalar_subquery()
    )
    ledger.execute(next_one.values(adjoins=IntervalRow.from_time == row.to_time))
    ledger.add(row)
    ledger.flush()
