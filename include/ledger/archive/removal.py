"""Removing landing files: which micro-batches registered intervals have replaced, and whose files were removed.

A micro-batch's archived rows lie in its landing files until all of these are marked removed at once. From then on they
are read from the registered revisions of the intervals that hold its offsets (`include/ledger/archive/holdings.py`).
Files of the other fates stay, and are merged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import case, func, select, update
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.archive.holdings import registered_around
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.positions import ARCHIVE, of_query, overlaps
from include.ledger.database import session
from include.ledger.intervals import pins
from include.ledger.intervals.revisions import UNKNOWN, decoders_in
from include.ledger.models import IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange, TopicIncarnation
from include.offsets import Fate, OffsetRange, TopicPartition, intersection, merged

_AT_ONCE = 1_000
"""Micro-batches whose ranges are in memory at once, however many became due since the last housekeeping."""


def settled_batches(pipeline: str, until: datetime, fates: Sequence[Fate]) -> Iterator[dict[int, list[OffsetRange]]]:
    """Yield micro-batches with loose files of the fates, committed before `until`, wholly in registered intervals.

    They come some at a time, in the order of their numbers, each portion read when it is asked for. A loose file is
    neither compacted nor removed.
    """
    after = 0
    while True:
        with session() as ledger:
            loose = ledger.scalars(
                select(LandingFileRow.micro_batch_id)
                .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
                .where(
                    LandingFileRow.micro_batch_id > after,
                    of_query(pipeline, ARCHIVE),
                    MicroBatch.committed_at < until,
                    LandingFileRow.fate.in_(fates),
                    LandingFileRow.removed_at.is_(None),
                    LandingFileRow.compacted_at.is_(None),
                )
                .distinct()
                .order_by(LandingFileRow.micro_batch_id)
                .limit(_AT_ONCE)
            ).all()
            settled = _settled(ledger, pipeline, loose)
        if not loose:
            return
        if settled:
            yield settled
        after = loose[-1]


def _settled(ledger: Session, pipeline: str, which: Collection[int]) -> dict[int, list[OffsetRange]]:
    """Return those of the micro-batches that lie wholly in registered intervals, with their ranges."""
    batches: dict[int, list[tuple[str, OffsetRange]]] = defaultdict(list)
    read = select(
        MicroBatchRange.micro_batch_id,
        MicroBatchRange.topic,
        MicroBatchRange.topic_partition,
        MicroBatchRange.topic_id,
        MicroBatchRange.from_offset,
        MicroBatchRange.until_offset,
    )
    for batch, topic, partition, topic_id, begin, until in ledger.execute(
        read.where(MicroBatchRange.micro_batch_id.in_(which))
    ):
        batches[batch].append((topic_id, OffsetRange(TopicPartition(topic, partition), begin, until)))
    registered = _registered(ledger, pipeline, [each for parts in batches.values() for _, each in parts])
    return {
        key: [each for _, each in parts]
        for key, parts in batches.items()
        if all(_lies_in(each, registered.get((topic_id, each.topic_partition), [])) for topic_id, each in parts)
    }


def _registered(
    ledger: Session, pipeline: str, ranges: Sequence[OffsetRange]
) -> dict[tuple[str, TopicPartition], list[OffsetRange]]:
    """Return the offsets of registered intervals around the ranges, per topic id and topic partition."""
    registered: dict[tuple[str, TopicPartition], list[OffsetRange]] = defaultdict(list)
    for each in merged(ranges):
        for row, held in registered_around(ledger, pipeline, each):
            registered[row.topic_id, held.topic_partition].append(held)
    return {key: merged(parts) for key, parts in registered.items()}


def _lies_in(wanted: OffsetRange, wholes: Sequence[OffsetRange]) -> bool:
    return not len(wanted) or any(intersection(wanted, whole) == wanted for whole in wholes)


def mark_removed(pipeline: str, batches: Iterable[int]) -> set[int]:
    """Record that archived files of the micro-batches are no longer read, and return these micro-batches.

    A micro-batch of an interval that was pinned again meanwhile keeps its files, as does one of an interval that other
    code has read from Kafka since: nothing else surely holds its rows.
    All keep them when a recreated topic was adopted meanwhile: tables identify rows by offset alone.
    """
    with session() as ledger:
        pins.lock_pinning(ledger, pipeline)
        if ledger.scalar(select(TopicIncarnation.topic_id).where(TopicIncarnation.pipeline == pipeline).limit(1)):
            return set()
        settled = _read_as_landed(ledger, pipeline, _settled(ledger, pipeline, set(batches)), lock=True)
        ledger.execute(
            update(LandingFileRow)
            .where(
                LandingFileRow.micro_batch_id.in_(settled),
                LandingFileRow.fate == Fate.ARCHIVED,
                LandingFileRow.removed_at.is_(None),
            )
            .values(removed_at=func.now())
        )
        return settled


def read_as_landed(pipeline: str, batches: Mapping[int, Sequence[OffsetRange]]) -> set[int]:
    """Return those of the micro-batches, with their ranges, of which `mark_removed` would record the files as removed.

    Others were read from Kafka by other code since than landed them.
    """
    with session() as ledger:
        return _read_as_landed(ledger, pipeline, batches)


def _read_as_landed(
    ledger: Session, pipeline: str, batches: Mapping[int, Sequence[OffsetRange]], *, lock: bool = False
) -> set[int]:
    """Return those of the micro-batches whose registered builds read them with the code that landed them.

    `lock`: no other build of their intervals is registered before the transaction ends.
    """
    wholes = merged(each for parts in batches.values() for each in parts)
    holders = [(row.interval_id, held) for each in wholes for row, held in registered_around(ledger, pipeline, each)]
    intervals = {interval for interval, _ in holders}
    if lock:
        locked = select(IntervalRow.id).where(IntervalRow.id.in_(intervals)).order_by(IntervalRow.id)
        ledger.execute(locked.with_for_update(read=True))
    builds = decoders_in(ledger, intervals)
    noted = select(MicroBatch.id, MicroBatch.decoder_version).where(MicroBatch.id.in_(batches))
    versions = {batch: version or UNKNOWN for batch, version in ledger.execute(noted)}
    otherwise = {
        batch
        for batch, parts in batches.items()
        for interval, held in holders
        if builds[interval] and not any(versions[batch] in build for build in builds[interval])
        if any(intersection(each, held) for each in parts)
    }
    return batches.keys() - otherwise


def removed_ranges(pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of the ranges whose landing files are removed, in as few ranges as possible.

    Micro-batches without archived rows have no files to miss: they join what is removed around them.
    """
    with session() as ledger:
        return removed_in(ledger, pipeline, ranges)


def removed_in(ledger: Session, pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return `removed_ranges` within the caller's transaction."""
    return merged(part for each in merged(ranges) for part in _removed_of(ledger, pipeline, each))


def _removed_of(ledger: Session, pipeline: str, wanted: OffsetRange) -> list[OffsetRange]:
    tp = wanted.topic_partition
    rows = ledger.execute(
        select(
            MicroBatchRange.from_offset,
            MicroBatchRange.until_offset,
            func.count(case((LandingFileRow.removed_at.is_(None), LandingFileRow.id))),
            func.count(LandingFileRow.removed_at),
        )
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .outerjoin(
            LandingFileRow, (LandingFileRow.micro_batch_id == MicroBatch.id) & (LandingFileRow.fate == Fate.ARCHIVED)
        )
        .where(
            of_query(pipeline, ARCHIVE),
            MicroBatchRange.topic == tp.topic,
            MicroBatchRange.topic_partition == tp.partition,
            overlaps(MicroBatchRange, wanted),
        )
        .group_by(MicroBatchRange.micro_batch_id, MicroBatchRange.from_offset, MicroBatchRange.until_offset)
        .order_by(MicroBatchRange.from_offset)
    ).all()
    removed: list[OffsetRange] = []
    run: list[OffsetRange] = []
    until_removed = 0
    for begin, until, files_kept, files_removed in [*rows, (0, 0, 1, 0)]:
        common = intersection(OffsetRange(tp, begin, until), wanted)
        if files_removed and not files_kept and common:
            run.append(common)
            until_removed = len(run)
        elif not files_kept and common and run:
            run.append(common)
        elif files_kept:
            removed += run[:until_removed]
            run, until_removed = [], 0
    return removed


def move_into(pipeline: str, files: Collection[LandingFile], path: str, size: int) -> None:
    """Record that the rows of the files lie in the compacted file at `path`, in one transaction.

    Raises AnotherWriter, with nothing changed, when one of them no longer lies where `files` says.
    """
    with session() as ledger:
        moved = ledger.execute(
            update(LandingFileRow)
            .where(LandingFileRow.id.in_({file.id for file in files}))
            .where(LandingFileRow.path.in_({file.path for file in files}))
            .values(path=path, bytes=size, compacted_at=func.now())
            .returning(LandingFileRow.id)
        ).all()
        if len(moved) != len(files):
            raise AnotherWriter(
                f"a file was written anew while those of its day were merged into {path}; nothing was changed",
                remedy=f"merge them again: ./tidemark housekeeping {pipeline}",
                pipeline=pipeline,
            )
