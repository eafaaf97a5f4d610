"""Losses: offsets that Kafka removed before they were archived. They are noted, accepted, and never forgotten.

And offsets of older intervals from before the archive's beginning, which were not to be archived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.ledger.archive.archived_offsets import before_archive
from include.ledger.database import session
from include.ledger.models import Loss, Topic
from include.offsets import OffsetRange
from include.times import format_time


@dataclass(frozen=True)
class AcceptedLoss:
    """Lost offsets of an interval, and who accepted that."""

    id: int
    range: OffsetRange
    accepted_at: datetime
    accepted_by: str
    reason: str
    what = "offsets lost before they were archived"

    @property
    def evidence(self) -> str:
        """What reconciliation reports about it."""
        return (
            f"{self.range} ({len(self.range)} offsets) was removed from Kafka before it was archived; "
            f"loss {self.id}, accepted by {self.accepted_by} at {format_time(self.accepted_at)}: {self.reason}"
        )


@dataclass(frozen=True)
class PassedOver:
    """Offsets of an interval from before the archive's beginning: it was pinned before the stream's first commit."""

    range: OffsetRange
    what = "offsets from before the archive's beginning"

    @property
    def evidence(self) -> str:
        """What reconciliation reports about them."""
        return f"{self.range} ({len(self.range)} offsets) was read by no micro-batch: the archive begins after it"


NotArchived = AcceptedLoss | PassedOver


def note_losses(pipeline: str, lost: Iterable[OffsetRange]) -> None:
    """Record losses that nobody has accepted yet; one that was found before and has grown is extended."""
    with session() as ledger:
        add_losses(ledger, pipeline, lost)


def add_losses(ledger: Session, pipeline: str, lost: Iterable[OffsetRange]) -> list[Loss]:
    """Record losses like `note_losses` within a transaction, and return the rows."""
    rows = []
    for each in lost:
        tp = each.topic_partition
        known = select(Loss).where(
            Loss.pipeline == pipeline,
            Loss.topic_id == each.topic_id,
            Loss.topic_partition == tp.partition,
            Loss.from_offset == each.from_offset,
        )
        row = ledger.scalar(known)
        if row is None:
            row = Loss(
                pipeline=pipeline,
                topic=tp.topic,
                topic_id=each.topic_id,
                topic_partition=tp.partition,
                from_offset=each.from_offset,
            )
            ledger.add(row)
        row.until_offset = each.until_offset
        ledger.flush()
        rows.append(row)
    return rows


def accepted_in(pipeline: str, ranges: Sequence[OffsetRange]) -> list[AcceptedLoss]:
    """Return the parts of accepted losses that lie in the ranges, in order."""
    accepted = []
    with session() as ledger:
        current = {t.topic: t.topic_id for t in ledger.scalars(select(Topic).where(Topic.pipeline == pipeline))}
        for each in ranges:
            tp = each.topic_partition
            wanted = select(Loss).where(
                Loss.pipeline == pipeline,
                Loss.topic == tp.topic,
                Loss.topic_id == (each.topic_id or current.get(tp.topic, "")),
                Loss.topic_partition == tp.partition,
                Loss.accepted_at.is_not(None),
                Loss.until_offset > each.from_offset,
                Loss.from_offset < each.until_offset,
            )
            for row in ledger.scalars(wanted.order_by(Loss.from_offset)):
                begin, until = max(row.from_offset, each.from_offset), min(row.until_offset, each.until_offset)
                lost = OffsetRange(tp, begin, until, row.topic_id)
                assert row.accepted_at is not None
                accepted.append(AcceptedLoss(row.id, lost, row.accepted_at, row.accepted_by or "", row.reason or ""))
    return accepted


def not_archived_in(pipeline: str, ranges: Sequence[OffsetRange]) -> list[NotArchived]:
    """Return the parts of the ranges that are accepted losses, and those from before the archive's beginning."""
    return [*accepted_in(pipeline, ranges), *map(PassedOver, before_archive(pipeline, ranges))]


def accepted_among(gone: Iterable[NotArchived]) -> int:
    """Return how many offsets are accepted losses."""
    return sum(len(each.range) for each in gone if isinstance(each, AcceptedLoss))


def without(ranges: Iterable[OffsetRange], gone: Iterable[NotArchived]) -> list[OffsetRange]:
    """Return the ranges without such parts at their beginnings: what Kafka should still hold of them."""
    lost = sorted((each.range for each in gone), key=lambda each: each.from_offset)
    kept = []
    for each in ranges:
        begin = each.from_offset
        for loss in lost:
            if loss.holds(each.topic_partition, begin):
                begin = min(loss.until_offset, each.until_offset)
        kept.append(replace(each, from_offset=begin))
    return kept


def to_be_read(pipeline: str, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges without what was never archived at their beginnings."""
    return without(ranges, not_archived_in(pipeline, ranges))
