"""What intervals need from the archive's commits: when an offset was committed, and where the archive begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select

from include.ledger.archive.positions import ARCHIVE, of_query
from include.ledger.database import session
from include.ledger.models import MicroBatch, MicroBatchRange
from include.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class CommittedSpan:
    """Offsets of a topic partition that were committed together."""

    from_offset: int
    until_offset: int
    committed_at: datetime


def commit_of(pipeline: str, topic_partition: TopicPartition, topic_id: str, offset: int) -> CommittedSpan | None:
    """Return the commit of an offset of the topic's incarnation; None when it is not archived."""
    span = _commit_from(pipeline, topic_partition, topic_id, offset)
    return span if span is not None and span.from_offset <= offset else None


def before_archive(pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of ranges that lie before their topic's first commit: no micro-batch has read them."""
    parts = []
    for each in ranges:
        tp, topic_id = each.topic_partition, each.topic_id
        span = _commit_from(pipeline, tp, topic_id, each.from_offset) if len(each) else None
        # Commits tile. What nevertheless lacks one after the first is not told away.
        if span and span.from_offset > each.from_offset and span == _commit_from(pipeline, tp, topic_id, -1):
            parts.append(replace(each, until_offset=min(span.from_offset, each.until_offset)))
    return parts


def _commit_from(pipeline: str, topic_partition: TopicPartition, topic_id: str, offset: int) -> CommittedSpan | None:
    """Return the first commit that ends after an offset of the topic's incarnation."""
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
        # Where nothing came, a micro-batch begins and ends at one offset.
        .order_by(MicroBatchRange.until_offset, MicroBatchRange.from_offset)
        .limit(1)
    )
    with session() as ledger:
        row = ledger.execute(wanted).first()
    return CommittedSpan(*row) if row is not None else None
