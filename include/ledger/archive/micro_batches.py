"""Committing micro-batches: the one transaction that makes landing files part of the archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.archive.landing_files import LandingFile, row_of
from include.ledger.archive.positions import ARCHIVE as ARCHIVE
from include.ledger.archive.positions import check_topics, of_query, position_rows
from include.ledger.archive.positions import positions as positions
from include.ledger.archive.positions import stored_topics as stored_topics
from include.ledger.database import session
from include.ledger.models import DivertedRecord, MicroBatch, MicroBatchRange, Position, QuarantineCount
from include.ledger.patience import repeatable, tried_again
from include.ledger.streams import outages, writers
from include.ledger.streams.outages import StateChange
from include.offsets import Coordinates, Fates, OffsetRange, TopicIdentity, TopicPartition


@dataclass(frozen=True)
class BatchCommit:
    """What a micro-batch is to commit."""

    pipeline: str
    query: str
    query_id: str
    batch_id: int
    ranges: Sequence[OffsetRange] = ()
    """Empty where lines were read (`include/ledger/streams/lines.py`)."""
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    fates: Mapping[TopicPartition, Fates] = field(default_factory=dict)
    files: Sequence[LandingFile] = ()
    rows: int = 0
    seconds: float = 0.0
    watermark: datetime | None = None
    decoder_version: str | None = None
    diverted: Mapping[Coordinates, str] = field(default_factory=dict)
    """Records taken out because they made the batch throw, and what they threw."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Quarantined records by reason code."""
    watched: Sequence[str] | None = None
    """The reports whose outages were looked for in its rows, each as `Listing.watched_as` gives it."""
    changes: Sequence[StateChange] = ()
    """What these rows found to be down, or up again."""


@dataclass(frozen=True)
class CommittedBatch:
    """A committed micro-batch."""

    query_id: str
    batch_id: int
    token: int
    """Fencing token of the driver that committed it."""
    committed_at: datetime
    watermark: datetime | None


def is_committed(query_id: str, batch_id: int) -> bool:
    """Return whether the micro-batch has been committed: a replay of it has nothing to do."""
    return token_of(query_id, batch_id) is not None


@repeatable
def token_of(query_id: str, batch_id: int) -> int | None:
    """Return the fencing token that the micro-batch was committed with; None when it was not."""
    with session() as ledger:
        wanted = select(MicroBatch.token).where(MicroBatch.query_id == query_id, MicroBatch.batch_id == batch_id)
        return ledger.scalar(wanted)


@repeatable
def committed_ranges(query_id: str, batch_id: int) -> list[OffsetRange]:
    """Return the offsets that a micro-batch was committed with, in order of the topic partitions."""
    wanted = select(MicroBatchRange).join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
    with session() as ledger:
        rows = ledger.scalars(wanted.where(MicroBatch.query_id == query_id, MicroBatch.batch_id == batch_id))
        return sorted(
            OffsetRange(TopicPartition(r.topic, r.topic_partition), r.from_offset, r.until_offset, r.topic_id)
            for r in rows
        )


def last_batch_id(query_id: str) -> int:
    """Return the last micro-batch that was committed for Spark's query of this id; -1 without one."""
    with session() as ledger:
        last = ledger.scalar(select(func.max(MicroBatch.batch_id)).where(MicroBatch.query_id == query_id))
        return -1 if last is None else last


def last_batch(pipeline: str, query: str) -> CommittedBatch | None:
    """Return the query's last committed micro-batch."""
    with session() as ledger:
        wanted = select(MicroBatch).where(of_query(pipeline, query))
        row = ledger.scalar(wanted.order_by(MicroBatch.id.desc()).limit(1))
        if row is None:
            return None
        return CommittedBatch(row.query_id, row.batch_id, row.token, row.committed_at, row.watermark)


def has_batch_since(pipeline: str, query: str, batch_id: int) -> bool:
    """Return whether the query has committed a micro-batch of this number or a greater one."""
    with session() as ledger:
        wanted = select(MicroBatch.id).where(of_query(pipeline, query), MicroBatch.batch_id >= batch_id)
        return ledger.scalar(wanted.limit(1)) is not None


def commit(lease: writers.Lease, batch: BatchCommit) -> None:
    """Commit a micro-batch, in this order, in one transaction:

    1. the lease is checked and its row locked, so that no second driver commits beside this one;
    2. each range must begin where the query's last commit ended, and each topic be the one read before;
    3. batch, ranges with the fate of every offset, and files are written and the positions moved;
    4. the lease is renewed.

    A patient process commits through an outage of PostgreSQL. Raises AnotherWriter, TopicRecreated, or TidemarkError
    when ranges do not continue the last commit.
    """
    committed_once(lease, batch, lambda: _commit(lease, batch))


def committed_once(lease: writers.Lease, batch: BatchCommit, commit: Callable[[], None]) -> None:
    """Run the transaction that commits a micro-batch; a patient process tries it again through an outage."""
    tries = count()

    def commit_unless_done() -> None:
        # The transaction may have been committed before its connection was lost.
        if not next(tries) or token_of(batch.query_id, batch.batch_id) != lease.token:
            commit()

    tried_again(commit_unless_done)


def _commit(lease: writers.Lease, batch: BatchCommit) -> None:
    with session() as ledger:
        writers.check(ledger, lease)
        check_topics(ledger, batch.pipeline, batch.topics, (each.topic_partition.topic for each in batch.ranges))
        row = write(ledger, lease.token, batch, records=sum(fates.records for fates in batch.fates.values()))
        _write_diverted(ledger, batch, row.id)
        topic_ids = {topic: identity.topic_id for topic, identity in batch.topics.items()}
        outages.record(ledger, batch.pipeline, row.id, batch.changes, topic_ids)
        at = {TopicPartition(p.topic, p.topic_partition): p for p in position_rows(ledger, batch.pipeline, batch.query)}
        for each in batch.ranges:
            _move_position(ledger, batch, row.id, at.get(each.topic_partition), each)
            fates = batch.fates.get(each.topic_partition, Fates())
            ledger.add(
                MicroBatchRange(
                    micro_batch_id=row.id,
                    topic=each.topic_partition.topic,
                    topic_partition=each.topic_partition.partition,
                    topic_id=batch.topics[each.topic_partition.topic].topic_id,
                    from_offset=each.from_offset,
                    until_offset=each.until_offset,
                    archived=fates.archived,
                    empty=fates.empty,
                    quarantined=fates.quarantined,
                    gaps=len(each) - fates.records if batch.query == ARCHIVE else 0,
                )
            )
        ledger.flush()
        writers.renew_checked(ledger, lease)
        crash_point("commit_written")


def write(ledger: Session, token: int, batch: BatchCommit, *, records: int = 0) -> MicroBatch:
    """Write the row of a micro-batch and those of its files; the caller writes what it read."""
    row = MicroBatch(
        pipeline=batch.pipeline,
        query=batch.query,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        token=token,
        records=records,
        rows=batch.rows,
        seconds=batch.seconds,
        watermark=batch.watermark,
        decoder_version=batch.decoder_version,
        watched=batch.watched,
    )
    ledger.add(row)
    ledger.flush()
    ledger.add_all(row_of(file, row.id) for file in batch.files)
    _count_reasons(ledger, batch, row.id)
    return row


def _count_reasons(ledger: Session, batch: BatchCommit, micro_batch: int) -> None:
    hour = func.date_trunc("hour", func.now())
    for reason, records in sorted(batch.reasons.items()):
        values = {"pipeline": batch.pipeline, "hour": hour, "reason": reason, "records": records}
        added = insert(QuarantineCount).values(**values, last_batch=micro_batch)
        together = {"records": QuarantineCount.records + added.excluded.records, "last_batch": micro_batch}
        ledger.execute(added.on_conflict_do_update(index_elements=["pipeline", "hour", "reason"], set_=together))


def _write_diverted(ledger: Session, batch: BatchCommit, micro_batch: int) -> None:
    for (topic, partition, offset), reason in batch.diverted.items():
        ledger.add(
            DivertedRecord(
                pipeline=batch.pipeline,
                topic=topic,
                topic_id=batch.topics[topic].topic_id,
                topic_partition=partition,
                record_offset=offset,
                reason=reason,
                micro_batch_id=micro_batch,
            )
        )


def _move_position(
    ledger: Session, batch: BatchCommit, micro_batch_id: int, position: Position | None, each: OffsetRange
) -> None:
    tp = each.topic_partition
    if position is None:
        position = Position(
            pipeline=batch.pipeline,
            query=batch.query,
            topic=tp.topic,
            topic_partition=tp.partition,
            next_offset=each.from_offset,
        )
        ledger.add(position)
    if position.next_offset != each.from_offset:
        raise TidemarkError(
            f"micro-batch {batch.batch_id} of {batch.query} covers {each}, but the last commit ended at "
            f"{position.next_offset}: checkpoint and ledger do not belong together; nothing was committed",
            remedy="restore the checkpoint that belongs to this ledger, or begin without it: "
            f'./tidemark new-generation {batch.pipeline} --reason "…"',
            pipeline=batch.pipeline,
        )
    position.next_offset, position.micro_batch_id = each.until_offset, micro_batch_id


def move_query(lease: writers.Lease, batch: BatchCommit) -> None:
    """Move a query to the ends of the batch's ranges, wherever it was, in one transaction.

    Positions that the batch does not name are forgotten; the micro-batch is written like one that read the ranges.
    Raises AnotherWriter.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        put_query_at(ledger, lease.token, batch)


def put_query_at(ledger: Session, token: int, batch: BatchCommit) -> None:
    """Do what `move_query` does in a transaction that has checked the lease."""
    row = write(ledger, token, batch)
    ledger.execute(delete(Position).where(Position.pipeline == batch.pipeline, Position.query == batch.query))
    for each in batch.ranges:
        tp = each.topic_partition
        ledger.add(
            MicroBatchRange(
                micro_batch_id=row.id,
                topic=tp.topic,
                topic_partition=tp.partition,
                topic_id=each.topic_id,
                from_offset=each.from_offset,
                until_offset=each.until_offset,
                gaps=len(each) if batch.query == ARCHIVE else 0,
            )
        )
        ledger.add(
            Position(
                pipeline=batch.pipeline,
                query=batch.query,
                topic=tp.topic,
                topic_partition=tp.partition,
                next_offset=each.until_offset,
                micro_batch_id=row.id,
            )
        )
    ledger.flush()
