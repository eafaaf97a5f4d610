"""Pinned intervals in the ledger: pinned once, then only read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from include.errors import TidemarkError
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.database import session
from include.ledger.models import (
    IntervalRange,
    IntervalRow,
    MicroBatch,
    MicroBatchRange,
    Position,
    Repin,
    Topic,
)
from include.offsets import OffsetRange, TopicPartition
from include.times import Interval


@dataclass(frozen=True)
class PinnedInterval:
    """An interval with its offset ranges."""

    id: int
    pipeline: str
    interval: Interval
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]


def lock_pinning(ledger: Session, pipeline: str) -> None:
    """Let one transaction at a time pin intervals of the pipeline."""
    ledger.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"pin:{pipeline}"})


def pinned_of(ledger: Session, row: IntervalRow) -> PinnedInterval:
    """Return the interval of a ledger row with its ranges."""
    ranges = ledger.scalars(
        select(IntervalRange)
        .where(IntervalRange.interval_id == row.id)
        .order_by(IntervalRange.topic, IntervalRange.topic_partition)
    ).all()
    return PinnedInterval(
        row.id,
        row.pipeline,
        Interval(row.from_time, row.to_time),
        tuple(
            OffsetRange(TopicPartition(r.topic, r.topic_partition), r.from_offset, r.until_offset, r.topic_id)
            for r in ranges
        ),
        {r.topic: r.topic_id for r in ranges},
    )


def find(ledger: Session, pipeline: str, from_time: datetime) -> PinnedInterval | None:
    """The pinned interval that begins then."""
    row = ledger.scalar(select(IntervalRow).where(IntervalRow.pipeline == pipeline, IntervalRow.from_time == from_time))
    return pinned_of(ledger, row) if row else None


def neighbour(ledger: Session, pipeline: str, *, last: bool) -> PinnedInterval | None:
    """The pipeline's first or last pinned interval."""
    order = IntervalRow.from_time.desc() if last else IntervalRow.from_time
    row = ledger.scalar(select(IntervalRow).where(IntervalRow.pipeline == pipeline).order_by(order).limit(1))
    return pinned_of(ledger, row) if row else None


def pinned_intervals(pipeline: str, from_time: datetime | None = None) -> list[PinnedInterval]:
    """All pinned intervals of the pipeline, or the one that begins then, in order."""
    with session() as ledger:
        wanted = select(IntervalRow).where(IntervalRow.pipeline == pipeline).order_by(IntervalRow.from_time)
        if from_time is not None:
            wanted = wanted.where(IntervalRow.from_time == from_time)
        return [pinned_of(ledger, row) for row in ledger.scalars(wanted)]


def write(
    ledger: Session,
    pipeline: str,
    interval: Interval,
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str],
    pinned_by: str,
) -> PinnedInterval:
    """Write a pinned interval. Raises TidemarkError when it would not tile with the one before or after."""
    of_pipeline = select(IntervalRow).where(IntervalRow.pipeline == pipeline)
    before = of_pipeline.where(IntervalRow.from_time < interval.from_time).order_by(IntervalRow.from_time.desc())
    after = of_pipeline.where(IntervalRow.from_time > interval.from_time).order_by(IntervalRow.from_time)
    for name, wanted, side in (("before", before, "until_offset"), ("after", after, "from_offset")):
        row = ledger.scalar(wanted.limit(1))
        if row is None or (
            row.to_time != interval.from_time if name == "before" else row.from_time != interval.to_time
        ):
            continue
        neighbour_there = pinned_of(ledger, row)
        # Incarnations of a topic do not tile with each other, and a topic added since begins where it does.
        same = {topic for topic, topic_id in neighbour_there.topic_ids.items() if topic_ids.get(topic) == topic_id}
        theirs = {tp: at for tp, at in _sides(neighbour_there.ranges, side).items() if tp.topic in same}
        other = "from_offset" if name == "before" else "until_offset"
        mine = {tp: at for tp, at in _sides(ranges, other).items() if tp.topic in same}
        for tp in theirs.keys() | mine.keys():
            if theirs.get(tp, 0) != mine.get(tp, 0):
                raise TidemarkError(
                    f"interval {interval} does not tile with the one {name} it at {tp}: "
                    f"{mine.get(tp, 0)} against {theirs.get(tp, 0)}",
                    remedy="run it again; the ledger was not changed",
                    pipeline=pipeline,
                )
    row = IntervalRow(
        pipeline=pipeline, from_time=interval.from_time, to_time=interval.to_time, pinned_by=pinned_by, state="pinned"
    )
    ledger.add(row)
    ledger.flush()
    _add_ranges(ledger, row.id, ranges, topic_ids)
    return pinned_of(ledger, row)


def _sides(ranges: Iterable[OffsetRange], side: str) -> dict[TopicPartition, int]:
    return {r.topic_partition: getattr(r, side) for r in ranges}


def _add_ranges(ledger: Session, interval_id: int, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> None:
    for each in ranges:
        ledger.add(
            IntervalRange(
                interval_id=interval_id,
                topic=each.topic_partition.topic,
                topic_partition=each.topic_partition.partition,
                topic_id=topic_ids[each.topic_partition.topic],
                from_offset=each.from_offset,
                until_offset=each.until_offset,
            )
        )
    ledger.flush()


def replace_ranges(
    ledger: Session, pinned: PinnedInterval, ranges: Sequence[OffsetRange], repinned_by: str
) -> PinnedInterval:
    """Give a pinned interval other ranges, on record with the old ones.

    What is registered of it stays registered, and is replaced by the run that follows, like after any rerun;
    until that has succeeded the interval counts as pinned only.
    """
    row = ledger.get_one(IntervalRow, pinned.id, with_for_update=True)
    ledger.execute(delete(IntervalRange).where(IntervalRange.interval_id == pinned.id))
    _add_ranges(ledger, pinned.id, ranges, pinned.topic_ids)
    row.state = "pinned"
    replaced = pinned_of(ledger, row)
    ledger.add(
        Repin(
            interval_id=pinned.id,
            repinned_by=repinned_by,
            old_ranges=[_as_json(each) for each in pinned.ranges],
            new_ranges=[_as_json(each) for each in replaced.ranges],
        )
    )
    ledger.flush()
    return replaced


def _as_json(each: OffsetRange) -> dict[str, Any]:
    return {
        "topic": each.topic_partition.topic,
        "topic_id": each.topic_id,
        "partition": each.topic_partition.partition,
        "from_offset": each.from_offset,
        "until_offset": each.until_offset,
    }


def first_committed_offsets(pipeline: str) -> dict[TopicPartition, int]:
    """Where the archive of each topic partition begins: the pipeline's declared start, as it came out.

    Of a topic that was deleted and created again: where its current incarnation begins.
    """
    # The query stops at the first micro-batch of each topic partition, however many follow it.
    first = (
        select(MicroBatchRange.from_offset)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == ARCHIVE,
            MicroBatchRange.topic == Position.topic,
            MicroBatchRange.topic_partition == Position.topic_partition,
            MicroBatchRange.topic_id == Topic.topic_id,
        )
        .order_by(MicroBatchRange.until_offset, MicroBatchRange.from_offset)
        .limit(1)
        .correlate(Position, Topic)
        .scalar_subquery()
    )
    with session() as ledger:
        rows = ledger.execute(
            select(Position.topic, Position.topic_partition, first)
            .join(Topic, (Topic.pipeline == Position.pipeline) & (Topic.topic == Position.topic))
            .where(Position.pipeline == pipeline, Position.query == ARCHIVE)
        )
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows if offset is not None}
