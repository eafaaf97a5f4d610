"""What the ledger knows of a speed view's micro-batches: how far, and with which watermark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.generations import first_version_beside
from include.ledger.models import MicroBatch, MicroBatchRange
from include.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class LateBound:
    """In this range the speed view dropped rows whose window ended at or before the watermark."""

    range: OffsetRange
    watermark: datetime


def late_bounds(pipeline: str, view: str, after: datetime) -> list[LateBound]:
    """The ranges of the view's micro-batches that ran with a late-row watermark of `after` or later.

    Spark drops late rows by the watermark of the micro-batch before (it keeps that one for late rows
    and the new one for closing windows), so each batch is paired with its predecessor's. Only its
    last generation counts: the base holds what an older one dropped.
    """
    with session() as ledger:
        mine = (MicroBatch.pipeline == pipeline, MicroBatch.query == view)
        last = ledger.scalar(select(func.max(MicroBatch.batch_id)).where(*mine))
        rows = ledger.execute(
            select(MicroBatch.id, MicroBatch.watermark, MicroBatch.query_id)
            .where(*mine, MicroBatch.batch_id >= first_version_beside(last or 0))
            .order_by(MicroBatch.id)
        ).all()
        effective: dict[int, datetime] = {}
        for (_, before, query), (batch, _, next_query) in pairwise(rows):
            if before is not None and before >= after and query == next_query:
                effective[batch] = before
        if not effective:
            return []
        ranges = ledger.scalars(select(MicroBatchRange).where(MicroBatchRange.micro_batch_id.in_(effective)))
        return [
            LateBound(
                OffsetRange(TopicPartition(r.topic, r.topic_partition), r.from_offset, r.until_offset, r.topic_id),
                effective[r.micro_batch_id],
            )
            for r in ranges
            if r.until_offset > r.from_offset
        ]
