"""What pinning needs from the archive's commits: when an offset was committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from include.ledger.archive.positions import ARCHIVE, of_query
from include.ledger.database import session
from include.ledger.models import MicroBatch, MicroBatchRange
from include.offsets import TopicPartition


@dataclass(frozen=True)
class CommittedSpan:
    """Offsets of a topic partition that were committed together."""

    from_offset: int
    until_offset: int
    committed_at: datetime


def commit_of(pipeline: str, topic_partition: TopicPartition, topic_id: str, offset: int) -> CommittedSpan | None:
    """Return the commit of an offset of the topic's incarnation; None when it is not archived."""
    wanted = (
        select(MicroBatchRange.from_offset, MicroBatchRange.until_offset, MicroBatch.committed_at)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(
            of_query(pipeline, ARCHIVE),
            MicroBatchRange.topic == topic_partition.topic,
            MicroBatchRange.topic_partition == topic_partition.partition,
            MicroBatchRange.topic_id == topic_id,
            MicroBatchRange.until_offset > offset,
        )
        .order_by(MicroBatchRange.until_offset)
        .limit(1)
    )
    with session() as ledger:
        row = ledger.execute(wanted).first()
    return CommittedSpan(*row) if row is not None and row[0] <= offset else None
