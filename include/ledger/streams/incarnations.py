"""Topics that were deleted and created again: which incarnations a pipeline has read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from include.ledger.archive.positions import of_query, overlapping
from include.ledger.database import session
from include.ledger.models import MicroBatch, MicroBatchRange, Topic, TopicIncarnation
from include.offsets import OffsetRange, TopicIdentity


def closed(pipeline: str) -> frozenset[str]:
    """Return the topic ids of the closed incarnations."""
    with session() as ledger:
        wanted = select(TopicIncarnation.topic_id).where(TopicIncarnation.pipeline == pipeline)
        return frozenset(ledger.scalars(wanted))


def terms(pipeline: str) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Return when incarnations of topics were adopted, and when incarnations were closed, by topic id."""
    wanted = select(TopicIncarnation.topic_id, TopicIncarnation.successor_id, TopicIncarnation.closed_at)
    with session() as ledger:
        rows = ledger.execute(wanted.where(TopicIncarnation.pipeline == pipeline)).tuples().all()
    return {successor: at for _, successor, at in rows}, {closed_id: at for closed_id, _, at in rows}


def was_closed_since(pipeline: str, query: str) -> bool:
    """Return whether an incarnation was closed after the query's last commit."""
    last = select(func.max(MicroBatch.committed_at)).where(of_query(pipeline, query))
    is_later = func.coalesce(TopicIncarnation.closed_at > last.scalar_subquery(), true())
    with session() as ledger:
        wanted = select(TopicIncarnation.topic_id).where(TopicIncarnation.pipeline == pipeline, is_later)
        return ledger.scalars(wanted.limit(1)).first() is not None


def never_read(pipeline: str, query: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ends of ranges of closed incarnations that the query had not committed when they were closed."""
    gone = closed(pipeline)
    rests: list[OffsetRange] = []
    with session() as ledger:
        for each in ranges:
            if each.topic_id not in gone:
                continue
            wanted = select(func.max(MicroBatchRange.until_offset)).where(
                of_query(pipeline, query),
                overlapping(each),
            )
            last = ledger.scalar(wanted.join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id))
            if (begin := max(each.from_offset, last or 0)) < each.until_offset:
                rests.append(replace(each, from_offset=begin))
    return rests


def succeed(ledger: Session, pipeline: str, successor: TopicIdentity, closed_by: str, reason: str) -> None:
    """Close the topic's incarnation that was read so far; from now on its successor stands for the topic."""
    row = ledger.get_one(Topic, (pipeline, successor.topic), with_for_update=True)
    ledger.add(
        TopicIncarnation(
            pipeline=pipeline,
            topic=successor.topic,
            topic_id=row.topic_id,
            topic_partitions=row.topic_partitions,
            successor_id=successor.topic_id,
            closed_by=closed_by,
            reason=reason,
        )
    )
    row.topic_id, row.topic_partitions = successor.topic_id, successor.topic_partitions
    row.left_at, row.left_by, row.left_for = None, None, None
    ledger.flush()
