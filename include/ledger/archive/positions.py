"""How far each query has committed, the topics it has read, and conditions on the offset ranges of commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, ColumnElement, and_, func, literal_column, select, true
from sqlalchemy.orm import Session

from include.ledger.archive.committed import ARCHIVE as ARCHIVE
from include.ledger.database import session
from include.ledger.models import OFFSETS, IntervalRange, MicroBatch, MicroBatchRange, Position, Topic
from include.offsets import OffsetRange, TopicIdentity, TopicPartition, check_same_topic


def positions(pipeline: str, query: str = ARCHIVE) -> dict[TopicPartition, int]:
    """Return the next offset that the query will commit, per topic partition."""
    with session() as ledger:
        rows = position_rows(ledger, pipeline, query)
        return {TopicPartition(row.topic, row.topic_partition): row.next_offset for row in rows}


def position_rows(ledger: Session, pipeline: str, query: str) -> Sequence[Position]:
    """Return the rows of a query's positions."""
    return ledger.scalars(select(Position).where(Position.pipeline == pipeline, Position.query == query)).all()


def stored_topics(pipeline: str) -> dict[str, str]:
    """Return the topics that the pipeline's commits were read from, with their ids."""
    with session() as ledger:
        return topic_ids(ledger, pipeline)


def topic_ids(ledger: Session, pipeline: str) -> dict[str, str]:
    """Return `stored_topics` within the caller's transaction."""
    return {row.topic: row.topic_id for row in ledger.scalars(select(Topic).where(Topic.pipeline == pipeline))}


def topics_that_left(pipeline: str) -> frozenset[str]:
    """Return the stored topics that the pipeline has stopped reading (`./tidemark unsubscribe`)."""
    with session() as ledger:
        wanted = select(Topic.topic).where(Topic.pipeline == pipeline, Topic.left_at.is_not(None))
        return frozenset(ledger.scalars(wanted))


def check_topics(ledger: Session, pipeline: str, topics: Mapping[str, TopicIdentity], read: Iterable[str] = ()) -> None:
    """Store topics that are read for the first time. Raises TopicRecreated when one is not the stored one.

    It is also raised for a topic of `read` that is not among `topics`, those that exist.
    """
    for gone in sorted({*read} - topics.keys()):
        known = ledger.get(Topic, (pipeline, gone))
        check_same_topic(pipeline, None, gone, known.topic_id if known else "unknown")
    for topic, identity in topics.items():
        stored = ledger.get(Topic, (pipeline, topic))
        if stored is None:
            ledger.add(
                Topic(
                    pipeline=pipeline,
                    topic=topic,
                    topic_id=identity.topic_id,
                    topic_partitions=identity.topic_partitions,
                )
            )
        else:
            check_same_topic(pipeline, identity, topic, stored.topic_id)
            stored.topic_partitions = identity.topic_partitions


def overlaps(table: type[MicroBatchRange] | type[IntervalRange], offsets: OffsetRange) -> ColumnElement[bool]:
    """Return the condition that a row's offsets overlap the range's, in a topic partition of its number in any topic.

    The index over spans answers it.
    """
    first = offsets.topic_partition.partition * OFFSETS
    wanted = func.numrange(Decimal(first + offsets.from_offset), Decimal(first + offsets.until_offset))
    return _span_of(table).op("&&", return_type=Boolean())(wanted)


def overlap_each_other(table: type[MicroBatchRange] | type[IntervalRange], other: Any) -> ColumnElement[bool]:
    """Return the condition that a row's offsets overlap those of another table's row, in the same topic partition.

    `other` has the columns topic, topic_partition, from_offset and until_offset; the index over spans answers it.
    """
    overlap = _span_of(table).op("&&", return_type=Boolean())(_span_of(other))
    return and_(table.topic == other.topic, overlap)


def _span_of(table: Any) -> ColumnElement[Any]:
    """Return the expression that the index over spans has (`models.SPAN`)."""
    first = table.topic_partition * literal_column(f"{OFFSETS}::numeric")
    return func.numrange(first + table.from_offset, first + table.until_offset)


def ranges_with(table: str, record: str, topic_id: str = "=") -> str:
    """Return, as SQL for a lateral join, the rows of a table of ranges that hold the offset of a row named `record`.

    `topic_id`: `<>` for other incarnations of the topic. The index over spans answers it for each record by itself:
    without OFFSET, PostgreSQL compares records that it has just written, and has no statistics of, with all ranges.
    """
    first = f"topic_partition * {OFFSETS}::numeric"
    span = f"numrange(r.{first} + r.from_offset, r.{first} + r.until_offset)"
    return f"""(
        SELECT r.* FROM {table} r
        WHERE {span} @> ({record}.{first} + {record}.record_offset)
            AND r.topic = {record}.topic AND r.topic_id {topic_id} {record}.topic_id
        OFFSET 0
    )"""


def overlapping(offsets: OffsetRange) -> ColumnElement[bool]:
    """Return the condition that a micro-batch's range overlaps this one, in its incarnation of the topic if it has one.

    The index over spans answers it.
    """
    tp = offsets.topic_partition
    return and_(
        MicroBatchRange.topic == tp.topic,
        MicroBatchRange.topic_partition == tp.partition,
        MicroBatchRange.topic_id == offsets.topic_id if offsets.topic_id else true(),
        overlaps(MicroBatchRange, offsets),
    )


def of_query(pipeline: str, query: str) -> ColumnElement[bool]:
    """Return the condition that a micro-batch is of the pipeline's query."""
    return and_(MicroBatch.pipeline == pipeline, MicroBatch.query == query)
