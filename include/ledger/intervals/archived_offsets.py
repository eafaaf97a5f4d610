"""What the archive's commits say to pinning: where it begins, and when it committed an offset."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from include.ledger.archive.positions import ARCHIVE
from include.ledger.database import session
from include.ledger.models import MicroBatch, MicroBatchRange, Position, Topic
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
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == ARCHIVE,
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


def first_committed_offsets(pipeline: str) -> dict[TopicPartition, int]:
    """Return where the archive of each topic partition begins: the pipeline's declared start, as it came out.

    Of a topic that was deleted and created again: where its current incarnation begins.
    """
    # The query stops at the first micro-batch of each topic partition, however many follow it.
    first = (
        select(MicroBatchRange.from_offset)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == ARCHIVE,
            MicroBatchRange.topic == Position.topic,
            MicroBatchRange.topic_partition == Position.topic_partition,
            MicroBatchRange.topic_id == Topic.topic_id,
        )
        .order_by(MicroBatchRange.until_offset, MicroBatchRange.from_offset)
        .limit(1)
        .correlate(Position, Topic)
        .scalar_subquery()
    )
    with session() as ledger:
        rows = ledger.execute(
            select(Position.topic, Position.topic_partition, first)
            .join(Topic, (Topic.pipeline == Position.pipeline) & (Topic.topic == Position.topic))
            .where(Position.pipeline == pipeline, Position.query == ARCHIVE)
        )
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows if offset is not None}
