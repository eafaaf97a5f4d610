"""What the ledger knows of a stream now, read in one transaction: for pages that look every few seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from include.ledger.archive.positions import ARCHIVE, of_query
from include.ledger.database import session
from include.ledger.models import (
    Erasure,
    Generation,
    LandingFileRow,
    MicroBatch,
    Position,
    QuarantineCount,
    QuarantineTotal,
    Writer,
)
from include.ledger.streams.writers import LiveWriter, live_at
from include.offsets import Fate

RECENTLY = timedelta(hours=1)
"""How far back records in quarantine count as new."""


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


def began_first(pipeline: str) -> datetime | None:
    """Return when the ledger opened its first generation of the pipeline; None before. Its copies know the same."""
    with session() as ledger:
        wanted = select(Generation.started_at).where(Generation.pipeline == pipeline)
        return ledger.scalar(wanted.order_by(Generation.number).limit(1))


def is_opened_by_erasures(pipeline: str) -> bool:
    """Return whether erasures alone have opened generations since one last started a query, and at least one has."""
    generations = select(Generation.number, Generation.positions).where(Generation.pipeline == pipeline)
    with session() as ledger:
        erasures = set(ledger.scalars(select(Erasure.generation).where(Erasure.pipeline == pipeline)))
        newest = ledger.execute(generations.order_by(Generation.number.desc()))
        opened = [number for number, _ in takewhile(lambda each: not each.positions, newest)]
    return bool(opened) and erasures.issuperset(opened)


def overview(pipeline: str) -> StreamOverview:
    """Return the stream as it is now. Raise ServiceUnreachable."""
    with session() as ledger:
        now = ledger.scalars(select(func.clock_timestamp())).one()
        row = ledger.get(Writer, pipeline)
        generation = ledger.scalar(
            select(Generation).where(Generation.pipeline == pipeline).order_by(Generation.number.desc()).limit(1)
        )
        of_archive = of_query(pipeline, ARCHIVE)
        recent = (of_archive, MicroBatch.committed_at > now - RECENTLY)
        return StreamOverview(
            pipeline,
            now,
            live_at(row, now) if row else None,
            row.token if row else 0,
            row.renewed_at if row else None,
            generation.number if generation else None,
            generation.reason if generation else "",
            ledger.scalar(select(func.max(MicroBatch.committed_at)).where(of_archive)),
            int(ledger.scalar(select(func.sum(MicroBatch.records)).where(*recent)) or 0),
            _quarantined(ledger, recent),
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
    wanted = select(QuarantineTotal.reason, QuarantineTotal.records).where(QuarantineTotal.pipeline == pipeline)
    if within is not None:
        # Not `clock_timestamp`: what may change within a statement selects no part of an index.
        since = func.date_trunc("hour", func.statement_timestamp() - within)
        wanted = (
            select(QuarantineCount.reason, func.sum(QuarantineCount.records))
            .where(QuarantineCount.pipeline == pipeline, QuarantineCount.hour >= since)
            .group_by(QuarantineCount.reason)
        )
    with session() as ledger:
        counts = [ReasonCount(reason, int(number)) for reason, number in ledger.execute(wanted)]
    return tuple(sorted(counts, key=lambda each: (-each.records, each.reason)))


def _moved(ledger: Session, pipeline: str) -> dict[str, datetime]:
    """Return when each query moved last; its positions lead to the micro-batch, however many came before."""
    wanted = (
        select(Position.query, func.max(MicroBatch.committed_at))
        .join(MicroBatch, MicroBatch.id == Position.micro_batch_id)
        .where(Position.pipeline == pipeline)
        .group_by(Position.query)
    )
    return dict(ledger.execute(wanted).tuples().all())


def _quarantined(ledger: Session, recent: Collection[ColumnElement[bool]]) -> int:
    counted = (
        select(func.sum(LandingFileRow.rows))
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(LandingFileRow.fate == Fate.QUARANTINED, *recent)
    )
    return int(ledger.scalar(counted) or 0)
