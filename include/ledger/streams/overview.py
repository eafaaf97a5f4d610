"""What the ledger knows of a stream now, read in one transaction: for pages that look every few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Subquery, func, select
from sqlalchemy.orm import Session

from include.ledger.archive.positions import ARCHIVE
from include.ledger.database import session
from include.ledger.models import Generation, LandingFileRow, MicroBatch, Position, QuarantineCount, Writer
from include.ledger.streams.writers import LiveWriter, live_at
from include.offsets import Fate

RECENTLY = timedelta(hours=1)
"""How far back records in quarantine count as new."""

_MOST = 4000
"""How many micro-batches are read: more than an hour's, as at most one begins each second."""


@dataclass(frozen=True)
class StreamOverview:
    """A stream, as the ledger has it."""

    pipeline: str
    read_at: datetime
    """By the ledger's clock, like all times here."""
    writer: LiveWriter | None
    """The driver that holds the lease; None when nobody does."""
    token: int
    """The last fencing token; 0 when no driver ever ran."""
    last_holder_seen: datetime | None
    """The last sign of life of any driver."""
    stop_requested: bool
    generation: int | None
    generation_reason: str
    committed_at: datetime | None
    """When the archive's last micro-batch was committed."""
    records: int
    """Records committed within `RECENTLY`."""
    quarantined: int
    """How many of these are in quarantine."""
    moved: Mapping[str, datetime] = field(default_factory=dict)
    """When each query's last micro-batch was committed."""


def overview(pipeline: str) -> StreamOverview:
    """Return the stream as it is now. Raise ServiceUnreachable."""
    with session() as ledger:
        now = ledger.scalars(select(func.clock_timestamp())).one()
        row = ledger.get(Writer, pipeline)
        generation = ledger.scalar(
            select(Generation).where(Generation.pipeline == pipeline).order_by(Generation.number.desc()).limit(1)
        )
        newest = _newest(pipeline)
        records = select(func.coalesce(func.sum(newest.c.records), 0)).where(newest.c.committed_at > now - RECENTLY)
        return StreamOverview(
            pipeline,
            now,
            live_at(row, now) if row else None,
            row.token if row else 0,
            row.renewed_at if row else None,
            bool(row and row.stop_requested),
            generation.number if generation else None,
            generation.reason if generation else "",
            ledger.scalar(select(func.max(newest.c.committed_at))),
            int(ledger.scalar(records) or 0),
            _quarantined(ledger, newest, now),
            _moved(ledger, pipeline),
        )


@dataclass(frozen=True)
class ReasonCount:
    """How many records came into quarantine for one reason."""

    reason: str
    records: int


def quarantined_by_reason(pipeline: str, within: timedelta | None = None) -> tuple[ReasonCount, ...]:
    """Return why records came into quarantine, the most frequent reason first.

    The ledger counts by the hour: `within` selects the hours that it touches, None selects all.
    """
    records = func.sum(QuarantineCount.records)
    wanted = (
        select(QuarantineCount.reason, records)
        .where(QuarantineCount.pipeline == pipeline)
        .group_by(QuarantineCount.reason)
        .order_by(records.desc(), QuarantineCount.reason)
    )
    if within is not None:
        wanted = wanted.where(QuarantineCount.hour >= func.date_trunc("hour", func.clock_timestamp() - within))
    with session() as ledger:
        return tuple(ReasonCount(reason, int(number)) for reason, number in ledger.execute(wanted))


def _moved(ledger: Session, pipeline: str) -> dict[str, datetime]:
    """Return when each query moved last; its positions lead to the micro-batch, however many came before."""
    wanted = (
        select(Position.query, func.max(MicroBatch.committed_at))
        .join(MicroBatch, MicroBatch.id == Position.micro_batch_id)
        .where(Position.pipeline == pipeline)
        .group_by(Position.query)
    )
    return dict(ledger.execute(wanted).tuples().all())


def _newest(pipeline: str) -> Subquery:
    """Return the archive's newest micro-batches: the index over a query's commits leads to them."""
    return (
        select(MicroBatch.id, MicroBatch.committed_at, MicroBatch.records)
        .where(MicroBatch.pipeline == pipeline, MicroBatch.query == ARCHIVE)
        .order_by(MicroBatch.id.desc())
        .limit(_MOST)
        .subquery()
    )


def _quarantined(ledger: Session, newest: Subquery, now: datetime) -> int:
    counted = (
        select(func.coalesce(func.sum(LandingFileRow.rows), 0))
        .join(newest, newest.c.id == LandingFileRow.micro_batch_id)
        .where(LandingFileRow.fate == Fate.QUARANTINED, newest.c.committed_at > now - RECENTLY)
    )
    return int(ledger.scalar(counted) or 0)
