"""Committing micro-batches: the one transaction that makes landing files part of the archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Boolean, ColumnElement, delete, func, select, true
from sqlalchemy.orm import Session

from include.crash_points import crash_point
from include.errors import TidemarkError
from include.kafka import TopicIdentity, check_same_topic
from include.ledger.database import session
from include.ledger.models import (
    DivertedRecord,
    IntervalRange,
    LandingFile,
    MicroBatch,
    MicroBatchRange,
    Position,
    Topic,
)
from include.ledger.streams import writers
from include.offsets import Coordinates, OffsetRange, TopicPartition

ARCHIVE = "archive"
"""Name of the archive query; a speed query is named after its view."""


@dataclass(frozen=True)
class Fates:
    """How many records of a topic partition met which fate."""

    archived: int = 0
    empty: int = 0
    quarantined: int = 0

    @property
    def records(self) -> int:
        """Visible records."""
        return self.archived + self.empty + self.quarantined


@dataclass(frozen=True)
class LandedFile:
    """A file of a micro-batch, its path below the lake."""

    outcome: str
    path: str
    rows: int
    bytes: int
    event_times: tuple[datetime, datetime] | None = None


@dataclass(frozen=True)
class BatchCommit:
    """What a micro-batch wants to commit."""

    pipeline: str
    query: str
    query_id: str
    batch_id: int
    ranges: Sequence[OffsetRange] = ()
    """None where lines were read (`include/ledger/streams/lines.py`)."""
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)
    fates: Mapping[TopicPartition, Fates] = field(default_factory=dict)
    files: Sequence[LandedFile] = ()
    rows: int = 0
    seconds: float = 0.0
    watermark: datetime | None = None
    decoder_version: str | None = None
    diverted: Mapping[Coordinates, str] = field(default_factory=dict)
    """Records taken out because they made the batch throw, and what they threw."""


def is_committed(query_id: str, batch_id: int) -> bool:
    """Whether the micro-batch has been committed: a replay of it has nothing to do."""
    with session() as ledger:
        wanted = select(MicroBatch.id).where(MicroBatch.query_id == query_id, MicroBatch.batch_id == batch_id)
        return ledger.scalar(wanted) is not None


def token_of(query_id: str, batch_id: int) -> int | None:
    """The fencing token that the micro-batch was committed with; None when it was not."""
    with session() as ledger:
        wanted = select(MicroBatch.token).where(MicroBatch.query_id == query_id, MicroBatch.batch_id == batch_id)
        return ledger.scalar(wanted)


def commit(lease: writers.Lease, batch: BatchCommit) -> None:
    """Commit a micro-batch, in this order, in one transaction:

    1. the lease is checked and its row locked, so that no second driver commits beside this one;
    2. each range must begin where the query's last commit ended, and each topic be the one read before;
    3. batch, ranges with the fate of every offset, and files are written and the positions moved.

    Raises AnotherWriter, TopicRecreated, or TidemarkError when ranges do not continue the last commit.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        _check_topics(ledger, batch.pipeline, batch.topics)
        row = write(ledger, lease.token, batch, records=sum(fates.records for fates in batch.fates.values()))
        for (topic, partition, offset), reason in batch.diverted.items():
            ledger.add(
                DivertedRecord(
                    pipeline=batch.pipeline,
                    topic=topic,
                    topic_id=batch.topics[topic].topic_id,
                    topic_partition=partition,
                    record_offset=offset,
                    reason=reason,
                    micro_batch_id=row.id,
                )
            )
        at = {TopicPartition(p.topic, p.topic_partition): p for p in _positions(ledger, batch.pipeline, batch.query)}
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
        crash_point("commit_written")


def write(ledger: Session, token: int, batch: BatchCommit, *, records: int = 0) -> MicroBatch:
    """Write the row of a micro-batch and those of its files; what it read is the caller's."""
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
    )
    ledger.add(row)
    ledger.flush()
    for file in batch.files:
        low, high = file.event_times or (None, None)
        ledger.add(
            LandingFile(
                micro_batch_id=row.id,
                outcome=file.outcome,
                path=file.path,
                rows=file.rows,
                bytes=file.bytes,
                event_time_min=low,
                event_time_max=high,
            )
        )
    return row


def _check_topics(ledger: Session, pipeline: str, topics: Mapping[str, TopicIdentity]) -> None:
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


def move(ledger: Session, token: int, batch: BatchCommit) -> None:
    """Put a query to the ends of the batch's ranges, wherever it was: positions it does not name are forgotten.

    The micro-batch is written like one that read the ranges. The caller has checked the lease in this transaction.
    """
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


def positions(pipeline: str, query: str = ARCHIVE) -> dict[TopicPartition, int]:
    """The next offset the query will commit, per topic partition."""
    with session() as ledger:
        rows = _positions(ledger, pipeline, query)
        return {TopicPartition(row.topic, row.topic_partition): row.next_offset for row in rows}


def _positions(ledger: Session, pipeline: str, query: str) -> Sequence[Position]:
    return ledger.scalars(select(Position).where(Position.pipeline == pipeline, Position.query == query)).all()


def stored_topics(pipeline: str) -> dict[str, str]:
    """Topic ids that earlier commits of the pipeline were read from, by topic."""
    with session() as ledger:
        return {row.topic: row.topic_id for row in ledger.scalars(select(Topic).where(Topic.pipeline == pipeline))}


def last_batch(pipeline: str, query: str) -> MicroBatch | None:
    """The query's last committed micro-batch."""
    with session() as ledger:
        wanted = select(MicroBatch).where(MicroBatch.pipeline == pipeline, MicroBatch.query == query)
        return ledger.scalar(wanted.order_by(MicroBatch.id.desc()).limit(1))


def overlaps(table: type[MicroBatchRange] | type[IntervalRange], offsets: OffsetRange) -> ColumnElement[bool]:
    """Whether a row's offsets overlap the range's; written so that the index over spans answers it."""
    span = func.int8range(table.from_offset, table.until_offset)
    return span.op("&&", return_type=Boolean())(func.int8range(offsets.from_offset, offsets.until_offset))


def of_incarnation(table: type[MicroBatchRange], offsets: OffsetRange) -> ColumnElement[bool]:
    """Whether a row is of the same topic as the range, and not of one of its name that was deleted or came later."""
    return table.topic_id == offsets.topic_id if offsets.topic_id else true()


def files_covering(pipeline: str, ranges: Iterable[OffsetRange], outcome: str) -> list[str]:
    """Paths below the lake of the files whose micro-batches overlap the ranges, each in its incarnation.

    Files that housekeeping has removed are not among them (`include/ledger/archive/landing.py`).
    """
    found: set[str] = set()
    current = stored_topics(pipeline)
    with session() as ledger:
        for each in ranges:
            if not len(each):
                continue
            named = replace(each, topic_id=each.topic_id or current.get(each.topic_partition.topic, ""))
            wanted = (
                select(LandingFile.path)
                .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
                .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
                .where(
                    MicroBatch.pipeline == pipeline,
                    MicroBatch.query == ARCHIVE,
                    LandingFile.outcome == outcome,
                    LandingFile.removed_at.is_(None),
                    MicroBatchRange.topic == each.topic_partition.topic,
                    of_incarnation(MicroBatchRange, named),
                    MicroBatchRange.topic_partition == each.topic_partition.partition,
                    overlaps(MicroBatchRange, each),
                )
            )
            found.update(ledger.scalars(wanted))
    return sorted(found)


def may_hold_events(low: datetime, high: datetime) -> ColumnElement[bool]:
    """Whether a landing file may hold an event in `[low, high)`; unknown times are unbounded.

    Written so that the index over event times answers it: old files cost nothing.
    """
    times = func.tstzrange(LandingFile.event_time_min, LandingFile.event_time_max, "[]")
    return times.op("&&", return_type=Boolean())(func.tstzrange(low, high))


def topic_ids_of_files(paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """By path of a landing file: the topics that its micro-batch read, with their ids."""
    found: dict[str, dict[str, str]] = {}
    with session() as ledger:
        for start in range(0, len(paths), 1000):
            rows = ledger.execute(
                select(LandingFile.path, MicroBatchRange.topic, MicroBatchRange.topic_id)
                .join(MicroBatchRange, MicroBatchRange.micro_batch_id == LandingFile.micro_batch_id)
                .where(LandingFile.path.in_(paths[start : start + 1000]))
                .distinct()
            )
            for path, topic, topic_id in rows:
                found.setdefault(path, {})[topic] = topic_id
    return found


def files_with_event_times(pipeline: str, low: datetime, high: datetime) -> list[str]:
    """Paths of the archive query's landing files that may hold an event in `[low, high)`; replays are none."""
    with session() as ledger:
        wanted = (
            select(LandingFile.path)
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(
                MicroBatch.pipeline == pipeline,
                MicroBatch.query == ARCHIVE,
                LandingFile.outcome == "archived",
                LandingFile.removed_at.is_(None),
                may_hold_events(low, high),
            )
        )
        return sorted(ledger.scalars(wanted))
