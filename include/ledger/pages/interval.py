"""One interval with all that belongs to it: attempts, revisions, ranges, and the micro-batches behind a range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, undefer

from include.ledger.archive.positions import ARCHIVE, of_query, overlapping
from include.ledger.database import session
from include.ledger.inventory import lost_attempts
from include.ledger.lineage import RangeFates
from include.ledger.models import (
    Attempt,
    IntervalRange,
    IntervalRow,
    LandingFileRow,
    MicroBatch,
    MicroBatchRange,
    Repin,
    Revision,
)
from include.offsets import OffsetRange
from include.times import Interval

MOST_BATCHES = 200
"""How many micro-batches of a range are shown."""


@dataclass(frozen=True)
class AttemptFacts:
    """A run of the interval."""

    id: int
    started_at: datetime
    ended_at: datetime | None
    run_by: str
    code_version: str
    source: str
    exit_code: int | None
    is_under_way: bool


@dataclass(frozen=True)
class RevisionFacts:
    """A revision of one of its table partitions, in any state."""

    table: str
    partition: str
    revision: str
    state: str
    rows: int
    content_hash: str
    location: str
    attempt: int
    built_at: datetime
    files: Mapping[str, Mapping[str, Any]]
    """File name to what was noted about it: rows, bytes, sha256 and offset statistics."""


@dataclass(frozen=True)
class WholeInterval:
    """A pinned interval with all that belongs to it."""

    pipeline: str
    interval: Interval
    state: str
    pinned_at: datetime
    pinned_by: str
    repinned: tuple[datetime, ...]
    verdict: Mapping[str, Any]
    """That of its last attempt that ended; empty before one has."""
    attempts: tuple[AttemptFacts, ...]
    """Latest first."""
    revisions: tuple[RevisionFacts, ...]
    """By table and partition, latest first; those that housekeeping removed are left out."""
    ranges: tuple[RangeFates, ...]
    before: Interval | None
    """The pinned interval before it."""
    after: Interval | None


def whole_interval(pipeline: str, from_time: datetime) -> WholeInterval | None:
    """Return the pinned interval that begins then, in one snapshot; None when none does."""
    begins_then = (IntervalRow.pipeline == pipeline, IntervalRow.from_time == from_time)
    lost = lost_attempts(*begins_then)
    with session() as ledger:
        ledger.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        row = ledger.scalar(select(IntervalRow).where(*begins_then).options(undefer(IntervalRow.verdict)))
        return _whole(ledger, row, lost) if row is not None else None


def _whole(ledger: Session, row: IntervalRow, lost: Collection[int]) -> WholeInterval:
    attempts = ledger.scalars(select(Attempt).where(Attempt.interval_id == row.id).order_by(Attempt.id.desc()))
    repins = ledger.scalars(select(Repin.repinned_at).where(Repin.interval_id == row.id).order_by(Repin.id))
    revisions = ledger.scalars(
        select(Revision)
        .where(Revision.interval_id == row.id, Revision.state != "removed")
        .order_by(Revision.table_name, Revision.table_partition, Revision.built_at.desc())
    )
    ranges = ledger.scalars(
        select(IntervalRange)
        .where(IntervalRange.interval_id == row.id)
        .order_by(IntervalRange.topic, IntervalRange.topic_partition)
    )
    return WholeInterval(
        row.pipeline,
        Interval(row.from_time, row.to_time),
        row.state,
        row.pinned_at,
        row.pinned_by,
        tuple(repins),
        row.verdict or {},
        tuple(
            AttemptFacts(
                a.id,
                a.started_at,
                a.ended_at,
                a.run_by,
                a.code_version,
                a.source,
                a.exit_code,
                a.ended_at is None and a.exit_code is None and a.id not in lost,
            )
            for a in attempts
        ),
        tuple(_revision(each) for each in revisions),
        tuple(_fates(each) for each in ranges),
        _neighbour(ledger, row, later=False),
        _neighbour(ledger, row, later=True),
    )


def _fates(row: IntervalRange) -> RangeFates:
    return RangeFates(
        row.topic,
        row.topic_id,
        row.topic_partition,
        row.from_offset,
        row.until_offset,
        row.archived,
        row.empty,
        row.quarantined,
        row.gaps,
        row.erased,
    )


def _revision(row: Revision) -> RevisionFacts:
    return RevisionFacts(
        row.table_name,
        row.table_partition,
        row.id,
        row.state,
        row.rows,
        row.content_hash,
        row.location,
        row.attempt_id,
        row.built_at,
        row.files,
    )


def _neighbour(ledger: Session, row: IntervalRow, *, later: bool) -> Interval | None:
    at = IntervalRow.from_time
    wanted = select(at, IntervalRow.to_time).where(IntervalRow.pipeline == row.pipeline)
    wanted = wanted.where(at > row.from_time if later else at < row.from_time)
    neighbour = ledger.execute(wanted.order_by(at if later else at.desc()).limit(1)).first()
    return Interval(*neighbour) if neighbour else None


@dataclass(frozen=True)
class BatchPart:
    """What a committed micro-batch of the archive holds of a topic partition."""

    micro_batch: int
    committed_at: datetime
    from_offset: int
    until_offset: int
    archived: int
    empty: int
    quarantined: int
    gaps: int
    erased: int
    files: tuple[tuple[str, str], ...]
    """Fate and path below the lake of its files that still exist."""


def batches_query(pipeline: str, within: OffsetRange) -> Select:
    """Return the query over the archive's micro-batches that overlap a range; the index over spans answers it."""
    return (
        select(MicroBatch, MicroBatchRange)
        .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
        .where(
            of_query(pipeline, ARCHIVE),
            overlapping(within),
        )
        .order_by(MicroBatchRange.from_offset)
        .limit(MOST_BATCHES + 1)
    )


def files_query(batches: list[int]) -> Select:
    """Return the query over the files of micro-batches that still exist."""
    return (
        select(LandingFileRow.micro_batch_id, LandingFileRow.fate, LandingFileRow.path)
        .where(LandingFileRow.micro_batch_id.in_(batches), LandingFileRow.removed_at.is_(None))
        .order_by(LandingFileRow.id)
    )


def batches_of(pipeline: str, within: OffsetRange) -> list[BatchPart]:
    """Return the micro-batches that overlap a range, in the order of offsets; at most one more than `MOST_BATCHES`."""
    with session() as ledger:
        rows = ledger.execute(batches_query(pipeline, within)).tuples().all()
        files: dict[int, list[tuple[str, str]]] = {}
        for batch_id, fate, path in ledger.execute(files_query([batch.id for batch, _ in rows])):
            files.setdefault(batch_id, []).append((fate, path))
    return [
        BatchPart(
            batch.id,
            batch.committed_at,
            part.from_offset,
            part.until_offset,
            part.archived,
            part.empty,
            part.quarantined,
            part.gaps,
            part.erased,
            tuple(files.get(batch.id, ())),
        )
        for batch, part in rows
    ]
