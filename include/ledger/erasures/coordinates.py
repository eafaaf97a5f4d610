"""Coordinates of erased records: code that reads offsets again must leave them out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from psycopg2.errors import LockNotAvailable
from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.archive.positions import topic_ids
from include.ledger.connection import LOCK_SECONDS
from include.ledger.database import lock, session
from include.ledger.intervals.pinned import PinnedInterval
from include.ledger.models import ErasedRecord, Erasure, IntervalRange, IntervalRow, Replay
from include.ledger.quarantine.decisions import key_of
from include.ledger.quarantine.records import RecordKey
from include.offsets import Coordinates, OffsetRange
from include.times import Interval


def erased_within(pipeline: str, ranges: Iterable[OffsetRange]) -> list[Coordinates]:
    """Return the erased records of the ranges, each range in its incarnation of the topic."""
    found: set[Coordinates] = set()
    with session() as ledger:
        if not _has_any(ledger, pipeline):
            return []
        current = topic_ids(ledger, pipeline)
        for each in ranges:
            found.update(_within(ledger, pipeline, current, each))
    return sorted(found)


def _has_any(ledger: Session, pipeline: str) -> bool:
    return ledger.scalar(select(Erasure.id).where(Erasure.pipeline == pipeline).limit(1)) is not None


def _within(ledger: Session, pipeline: str, current: Mapping[str, str], each: OffsetRange) -> Iterable[Coordinates]:
    tp = each.topic_partition
    named = replace(each, topic_id=each.topic_id or current.get(tp.topic, ""))
    wanted = select(ErasedRecord.record_offset).where(
        ErasedRecord.pipeline == pipeline,
        ErasedRecord.topic == tp.topic,
        ErasedRecord.topic_id == named.topic_id,
        ErasedRecord.topic_partition == tp.partition,
        ErasedRecord.record_offset >= each.from_offset,
        ErasedRecord.record_offset < each.until_offset,
    )
    return [(tp.topic, tp.partition, offset) for offset in ledger.scalars(wanted)]


def being_erased(pipeline: str) -> frozenset[RecordKey]:
    """Return the records of an erasure that is not finished: files may still hold them, and nobody may read them."""
    wanted = (
        select(ErasedRecord.topic, ErasedRecord.topic_id, ErasedRecord.topic_partition, ErasedRecord.record_offset)
        .join(Erasure, Erasure.id == ErasedRecord.erasure_id)
        .where(Erasure.pipeline == pipeline, Erasure.ended_at.is_(None))
    )
    with session() as ledger:
        return frozenset(RecordKey(*row) for row in ledger.execute(wanted).tuples())


def in_file(records: Iterable[RecordKey], topic_ids: Mapping[str, str]) -> frozenset[Coordinates]:
    """Return the coordinates that some records have in a file whose topics have these ids.

    A topic without an id there has only erased rows in the file (`landing_files.topic_ids_of_files`).
    """
    return frozenset(each.coordinates for each in records if topic_ids.get(each.topic, each.topic_id) == each.topic_id)


def last_erasure(pipeline: str) -> int:
    """Return the number of the pipeline's last erasure; 0 without one. A build reads it before anything else."""
    with session() as ledger:
        return ledger.scalar(select(func.max(Erasure.id)).where(Erasure.pipeline == pipeline)) or 0


def lock_erasing(ledger: Session, pipeline: str) -> None:
    """Keep what is noted of builds and registrations out of the transactions that begin an erasure or remove its names.

    Whoever takes it takes it before any row of a build, an attempt or an interval: so does the erasure.
    Raises AnotherWriter when an erasure holds it for longer than a statement waits for a lock: it holds it as long as
    the person's records take, however many they are.
    """
    try:
        lock(ledger, f"erasure:{pipeline}")
    except OperationalError as error:
        if isinstance(error.orig, LockNotAvailable):
            raise AnotherWriter(
                f"an erasure of {pipeline} has been beginning, or removing names, for more than {LOCK_SECONDS} s, and "
                "what is noted of builds and registrations waits for it",
                remedy=f"run this again when ./tidemark erase {pipeline} goes on or has ended",
                pipeline=pipeline,
            ) from error
        raise


def began_after(ledger: Session, pipeline: str, known: int) -> bool:
    """Return whether an erasure of the pipeline began after a known one; none begins before the transaction ends."""
    lock_erasing(ledger, pipeline)
    later = select(Erasure.id).where(Erasure.pipeline == pipeline, Erasure.id > known)
    return ledger.scalar(later.limit(1)) is not None


def were_erased_from(pinned: PinnedInterval) -> bool:
    """Return whether records were erased from an interval, of its ranges or delivered to it by replays."""
    wanted = select(Erasure.id).where(_took_from(pinned)).limit(1)
    with session() as ledger:
        return ledger.scalar(wanted) is not None


def _took_from(pinned: PinnedInterval) -> ColumnElement[bool]:
    return and_(Erasure.pipeline == pinned.pipeline, Erasure.intervals.contains([pinned.id]))


def check_noted(ledger: Session, pinned: PinnedInterval, known: int) -> None:
    """Raise AnotherWriter when an erasure of the pipeline began after the one that a build of an interval knows.

    Whichever interval held the records: the build also read rows of others, where windows or a total meet.
    """
    began = and_(Erasure.pipeline == pinned.pipeline, Erasure.id > known)
    why = f"an erasure of {pinned.pipeline} began while {pinned.interval} was built"
    _refuse_when(ledger, pinned, began, why)


def check_registered(ledger: Session, pinned: PinnedInterval, build: int) -> None:
    """Raise AnotherWriter when records of an interval were erased after a build of it was noted."""
    took = and_(_took_from(pinned), Erasure.last_build >= build)
    _refuse_when(ledger, pinned, took, f"{pinned.interval} was built before records of it were erased")


def _refuse_when(ledger: Session, pinned: PinnedInterval, condition: ColumnElement[bool], why: str) -> None:
    lock_erasing(ledger, pinned.pipeline)
    if ledger.scalar(select(Erasure.id).where(condition).limit(1)) is not None:
        raise AnotherWriter(f"{why}; this build is not used", remedy="run the interval again", pipeline=pinned.pipeline)


def intervals_with(pipeline: str, records: Collection[RecordKey]) -> list[Interval]:
    """Return the pinned intervals that hold some of the records, or deliver their replays, oldest first."""
    wanted = frozenset(records)
    by_log: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for each in sorted(wanted):
        by_log[each.topic, each.topic_id, each.partition].append(each.offset)
    pinned = select(IntervalRow, IntervalRange).join(IntervalRange, IntervalRange.interval_id == IntervalRow.id)
    replays = select(IntervalRow, Replay).join(Replay, Replay.interval_id == IntervalRow.id)
    with session() as ledger:
        found = {
            Interval(row.from_time, row.to_time)
            for row, part in ledger.execute(pinned.where(IntervalRow.pipeline == pipeline)).tuples()
            if _holds(by_log[part.topic, part.topic_id, part.topic_partition], part.from_offset, part.until_offset)
        }
        found |= {
            Interval(row.from_time, row.to_time)
            for row, replay in ledger.execute(replays.where(IntervalRow.pipeline == pipeline)).tuples()
            if key_of(replay) in wanted
        }
    return sorted(found, key=lambda each: each.from_time)


def _holds(offsets: Sequence[int], first: int, until: int) -> bool:
    at = bisect_left(offsets, first)
    return at < len(offsets) and offsets[at] < until
