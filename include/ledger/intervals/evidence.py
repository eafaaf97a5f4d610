"""What the ledger recorded, for reconciliation to compare with what it reads.

Every query here is bounded by the offsets or windows asked for, not by the number of past micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ARRAY, DateTime, Select, and_, func, literal, or_, select
from sqlalchemy.orm import aliased

from include.ledger.archive.holdings import registered_around
from include.ledger.archive.landing_files import may_hold_events
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.archive.positions import of_query, overlapping, overlaps
from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import IntervalRange, LandingFileRow, MicroBatch, MicroBatchRange, Position
from include.ledger.streams import generations
from include.ledger.streams.flags import FLAGS, InForce
from include.ledger.streams.generations import SPAN
from include.ledger.streams.incarnations import was_closed_since
from include.offsets import Fate, Fates, OffsetRange, TopicPartition, merged

NO_WATERMARK = datetime(1970, 1, 1, tzinfo=UTC)
"""What Spark drops late rows by before a query has a watermark, in update mode."""


@dataclass(frozen=True)
class LateBound:
    """In this range the speed view dropped rows whose window ended at `closed` or before."""

    range: OffsetRange
    closed: datetime
    first_watermark: datetime
    """The watermarks that dropped them, of `closed` or later."""
    last_watermark: datetime


@dataclass(frozen=True)
class SpeedPosition:
    """How far a speed view's current query has committed."""

    offsets: Mapping[TopicPartition, int]
    query_id: str
    batch_id: int
    """Its last committed micro-batch; -1 before the first."""


def speed_position(pipeline: str, view: str) -> SpeedPosition:
    """Return position and last micro-batch of a speed view, both as of one moment."""
    with session() as ledger:
        rows = ledger.execute(
            select(Position, MicroBatch)
            .join(MicroBatch, MicroBatch.id == Position.micro_batch_id, isouter=True)
            .where(Position.pipeline == pipeline, Position.query == view)
        ).all()
    last = max((batch for _, batch in rows if batch is not None), key=lambda batch: batch.id, default=None)
    offsets = {TopicPartition(at.topic, at.topic_partition): at.next_offset for at, _ in rows}
    return SpeedPosition(offsets, last.query_id if last else "", last.batch_id if last else -1)


def awaits_base(pipeline: str, view: str) -> bool:
    """Return whether a topic was adopted and the speed view has not begun again with all that is archived of it.

    Until then, its values and positions are those of the former topic, which it may not have read to the end.
    """
    generation = generations.current(pipeline)
    if generation is None or generations.has_written(generation, view):
        return False
    return was_closed_since(pipeline, view)


def first_counted(pipeline: str, view: str, events: tuple[datetime, datetime]) -> datetime | None:
    """Return when the speed view began the first micro-batch that may have counted an event of that time.

    None when that is unknown: nothing of that time is archived, or the speed view has not read that far.
    """
    in_time = (
        select(LandingFileRow.micro_batch_id)
        .where(LandingFileRow.fate == Fate.ARCHIVED, may_hold_events(*events))
        .cte("in_time")
        .prefix_with("MATERIALIZED")
    )
    where = (MicroBatchRange.topic, MicroBatchRange.topic_partition, MicroBatchRange.topic_id)
    firsts = (
        select(*where, func.min(MicroBatchRange.from_offset))
        .join(in_time, in_time.c.micro_batch_id == MicroBatchRange.micro_batch_id)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(
            of_query(pipeline, ARCHIVE),
            MicroBatchRange.from_offset < MicroBatchRange.until_offset,
        )
        .group_by(*where)
    )
    began: list[datetime] = []
    with session() as ledger:
        for topic, partition, topic_id, offset in ledger.execute(firsts).all():
            first = OffsetRange(TopicPartition(topic, partition), offset, offset + 1, topic_id)
            batches = ledger.execute(
                select(MicroBatch.committed_at, MicroBatch.seconds)
                .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
                .where(
                    of_query(pipeline, view),
                    overlapping(first),
                )
            ).all()
            if not batches:
                return None
            began += [committed_at - timedelta(seconds=seconds) for committed_at, seconds in batches]
    return min(began, default=None)


def raised_since(pipeline: str, force: InForce) -> datetime:
    """Return since when the flags of a range may have been written that must be there.

    The query in force began then, or the batch that read the range's first offset, if its beginning is known.
    """
    begin = force.range.from_offset
    first = OffsetRange(force.range.topic_partition, begin, begin + 1, force.range.topic_id)
    wanted = (
        select(MicroBatch.committed_at, MicroBatch.seconds)
        .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
        .where(
            of_query(pipeline, FLAGS),
            MicroBatch.seconds > 0,
            overlapping(first),
        )
    )
    with session() as ledger:
        began = [committed_at - timedelta(seconds=seconds) for committed_at, seconds in ledger.execute(wanted)]
        return max(force.since, min(began, default=force.since))


def late_bounds_within(
    query_id: str, bounds: Mapping[TopicPartition, tuple[int, int]], ends: Sequence[datetime]
) -> list[LateBound]:
    """Return the ranges in which a speed query dropped late rows of windows with these ends, in ascending order.

    Only ranges that touch the bounds (first and last offset per topic partition). Micro-batches whose watermarks closed
    the same windows are one range: so there are at most as many per topic partition as windows, however many
    micro-batches lie between windows that are far apart. Spark drops late rows by the watermark of the micro-batch
    before, so each is paired with its predecessor's; before a query has one, by 1970.
    """
    if not bounds:
        return []
    dropping = _dropping(query_id, bounds, ends).subquery().c
    same = (dropping.topic, dropping.topic_partition, dropping.topic_id, dropping.closed)
    # Without a gap, a range ends where the first one begins plus the lengths up to it: the difference is the same then.
    lengths = func.sum(dropping.until_offset - dropping.from_offset).over(
        partition_by=same, order_by=dropping.from_offset
    )
    each = select(*dropping, (dropping.until_offset - lengths).label("stretch")).subquery().c
    merged = select(
        each.topic,
        each.topic_partition,
        func.min(each.from_offset),
        func.max(each.until_offset),
        each.closed,
        func.min(each.watermark),
        func.max(each.watermark),
    ).group_by(each.topic, each.topic_partition, each.topic_id, each.closed, each.stretch)
    with session() as ledger:
        found = [
            LateBound(OffsetRange(TopicPartition(topic, partition), low, high), ends[closed - 1], first, last)
            for topic, partition, low, high, closed, first, last in ledger.execute(merged).tuples()
        ]
    return sorted(found, key=lambda bound: bound.range)


def _dropping(
    query_id: str, bounds: Mapping[TopicPartition, tuple[int, int]], ends: Sequence[datetime]
) -> Select[tuple[str, int, str, int, int, datetime, int]]:
    """Return the ranges, each with the watermark that its rows were dropped by, and how many of the windows it closed.

    Columns: topic, topic_partition, topic_id, from_offset, until_offset, watermark, closed.
    """
    batch, before = aliased(MicroBatch), aliased(MicroBatch)
    touching = [
        and_(
            MicroBatchRange.topic == tp.topic,
            MicroBatchRange.topic_partition == tp.partition,
            overlaps(MicroBatchRange, OffsetRange(tp, low, high + 1)),
        )
        for tp, (low, high) in bounds.items()
    ]
    watermark = func.coalesce(before.watermark, NO_WATERMARK)
    thresholds = literal(list(ends), ARRAY(DateTime(timezone=True)))
    return (
        select(
            MicroBatchRange.topic,
            MicroBatchRange.topic_partition,
            MicroBatchRange.topic_id,
            MicroBatchRange.from_offset,
            MicroBatchRange.until_offset,
            watermark.label("watermark"),
            func.width_bucket(watermark, thresholds).label("closed"),
        )
        .join(batch, batch.id == MicroBatchRange.micro_batch_id)
        .outerjoin(before, and_(before.query_id == batch.query_id, before.batch_id == batch.batch_id - 1))
        .where(
            batch.query_id == query_id,
            # A base has no micro-batch before it either, and drops nothing.
            or_(before.id.is_not(None), batch.batch_id % SPAN == 0),
            watermark >= ends[0],
            MicroBatchRange.until_offset > MicroBatchRange.from_offset,
            or_(*touching),
        )
    )


@dataclass(frozen=True)
class Recorded:
    """Fates that the ledger recorded for a range, and who counted them."""

    range: OffsetRange
    fates: Fates
    by: str


def committed_fates(pipeline: str, ranges: Iterable[OffsetRange]) -> list[Recorded]:
    """Return the fates that the micro-batches lying wholly inside each range committed, summed up.

    Micro-batches tile, so the ones inside a range are one range themselves; a range without any is left out.
    """
    recorded = []
    with session() as ledger:
        for each in ranges:
            row = ledger.execute(
                select(
                    func.min(MicroBatchRange.from_offset),
                    func.max(MicroBatchRange.until_offset),
                    func.sum(MicroBatchRange.archived),
                    func.sum(MicroBatchRange.empty),
                    func.sum(MicroBatchRange.quarantined),
                    func.sum(MicroBatchRange.erased),
                    func.count(),
                )
                .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
                .where(
                    of_query(pipeline, ARCHIVE),
                    overlapping(each),
                    MicroBatchRange.from_offset >= each.from_offset,
                    MicroBatchRange.until_offset <= each.until_offset,
                    MicroBatchRange.until_offset > MicroBatchRange.from_offset,
                )
            ).one()
            low, high, archived, empty, quarantined, erased, batches = row
            if batches:
                inner = OffsetRange(each.topic_partition, low, high)
                fates = Fates(int(archived), int(empty), int(quarantined), int(erased))
                recorded.append(Recorded(inner, fates, f"{batches} micro-batches"))
    return recorded


def recorded_fates(pinned: PinnedInterval) -> list[Recorded]:
    """Return the fates that an earlier attempt recorded beside the interval's ranges; none before the first."""
    with session() as ledger:
        rows = ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id == pinned.id)).all()
    return [_recorded(row) for row in rows if row.archived is not None]


def _recorded(row: IntervalRange) -> Recorded:
    held = OffsetRange(TopicPartition(row.topic, row.topic_partition), row.from_offset, row.until_offset)
    fates = Fates(row.archived or 0, row.empty or 0, row.quarantined or 0, row.erased)
    return Recorded(held, fates, "an earlier attempt")


def recorded_around(pipeline: str, ranges: Iterable[OffsetRange]) -> list[Recorded]:
    """Return the fates of the pinned ranges of registered intervals that have offsets in common with these."""
    with session() as ledger:
        around = [found for each in merged(ranges) for found in registered_around(ledger, pipeline, each)]
    rows = {(row.interval_id, held): row for row, held in around}
    return [_recorded(row) for row in rows.values() if row.archived is not None]


def noted_rows(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Return landing files, each with the sum of the rows that commits noted for it."""
    with session() as ledger:
        wanted = select(LandingFileRow.path, func.sum(LandingFileRow.rows)).where(LandingFileRow.path.in_(list(paths)))
        noted = ledger.execute(wanted.group_by(LandingFileRow.path).order_by(LandingFileRow.path))
        return [(path, int(rows)) for path, rows in noted]
