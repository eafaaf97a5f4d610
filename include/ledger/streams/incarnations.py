"""Topics that were deleted and created again: which incarnations a pipeline has read."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.models import Topic, TopicIncarnation
from include.offsets import TopicIdentity


def closed(pipeline: str) -> frozenset[str]:
    """Return the topic ids of the closed incarnations."""
    with session() as ledger:
        wanted = select(TopicIncarnation.topic_id).where(TopicIncarnation.pipeline == pipeline)
        return frozenset(ledger.scalars(wanted))


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
