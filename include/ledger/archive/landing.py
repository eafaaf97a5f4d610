"""What of the landing is still there, what was removed, and which registered revisions hold it since.

A micro-batch's archived rows lie in its landing files until they are marked removed, all of them at once;
from then on they are read from the registered revisions of the intervals that its offsets belong to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import case, func, select, update
from sqlalchemy.orm import Session

from include.errors import TidemarkError
from include.lake.revision_files import damaged_files
from include.ledger.archive.micro_batches import ARCHIVE, overlaps
from include.ledger.database import session
from include.ledger.models import IntervalRange, IntervalRow, LandingFile, MicroBatch, MicroBatchRange, Revision
from include.offsets import OffsetRange, TopicPartition, intersection, merged

ARCHIVED = "archived"

_AT_ONCE = 1000
"""Paths in one query."""


@dataclass(frozen=True)
class Holding:
    """A registered interval, the offsets in question that belong to it, and its revisions of the archive table."""

    interval_id: int
    from_time: datetime
    to_time: datetime
    ranges: tuple[OffsetRange, ...]
    revisions: tuple[Revision, ...]
    archived: int
    """Records of the whole interval that have rows in the archive."""

    def damage(self) -> str:
        """What is wrong with its revisions, read byte for byte; empty when they are as they were built."""
        if self.archived and not self.revisions:
            return "its records have rows, but no revision of the archive table is registered"
        for revision in self.revisions:
            for damaged in damaged_files(revision.location, revision.files, deep=True):
                return f"{revision.table_name} {revision.table_partition}: {damaged} in {revision.location}"
        return ""


def removed_ranges(pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of the ranges whose landing files are removed, in as few ranges as possible.

    Micro-batches without archived rows have no files to miss: they join what is removed around them.
    """
    found: list[OffsetRange] = []
    with session() as ledger:
        for each in merged(ranges):
            found += _removed_in(ledger, pipeline, each)
    return merged(found)


def _removed_in(ledger: Session, pipeline: str, wanted: OffsetRange) -> list[OffsetRange]:
    tp = wanted.topic_partition
    rows = ledger.execute(
        select(
            MicroBatchRange.from_offset,
            MicroBatchRange.until_offset,
            func.count(case((LandingFile.removed_at.is_(None), LandingFile.id))).label("lying"),
            func.count(LandingFile.removed_at).label("removed"),
        )
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .outerjoin(LandingFile, (LandingFile.micro_batch_id == MicroBatch.id) & (LandingFile.outcome == ARCHIVED))
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == ARCHIVE,
            MicroBatchRange.topic == tp.topic,
            MicroBatchRange.topic_partition == tp.partition,
            overlaps(MicroBatchRange, wanted),
        )
        .group_by(MicroBatchRange.micro_batch_id, MicroBatchRange.from_offset, MicroBatchRange.until_offset)
        .order_by(MicroBatchRange.from_offset)
    ).all()
    found: list[OffsetRange] = []
    run: list[OffsetRange] = []
    until_removed = 0
    for begin, until, lying, removed in [*rows, (0, 0, 1, 0)]:
        common = intersection(OffsetRange(tp, begin, until), wanted)
        if removed and not lying and common:
            run.append(common)
            until_removed = len(run)
        elif not lying and common and run:
            run.append(common)
        elif lying:
            found += run[:until_removed]
            run, until_removed = [], 0
    return found


def holdings(pipeline: str, table: str, ranges: Sequence[OffsetRange]) -> list[Holding]:
    """Which registered intervals hold the ranges, with their revisions of the archive table.

    Raises TidemarkError when some of the offsets belong to no registered interval: their rows are nowhere.
    """
    with session() as ledger:
        by_interval: dict[int, list[OffsetRange]] = defaultdict(list)
        for each in ranges:
            around = _registered_around(ledger, pipeline, each)
            parts = [(row.interval_id, intersection(held, each)) for row, held in around]
            for key, part in parts:
                by_interval[key] += [part] if part else []
            if merged(part for _, part in parts if part) != [each]:
                raise TidemarkError(
                    f"the landing files of {each} were removed, but it does not lie in registered intervals",
                    remedy="./tidemark doctor; then run the intervals that hold these offsets",
                    pipeline=pipeline,
                )
        found = [_holding(ledger, table, key, parts) for key, parts in by_interval.items()]
    return sorted(found, key=lambda holding: holding.from_time)


def _holding(ledger: Session, table: str, interval_id: int, ranges: Sequence[OffsetRange]) -> Holding:
    interval = ledger.get_one(IntervalRow, interval_id)
    rows = ledger.scalars(
        select(Revision)
        .where(Revision.interval_id == interval_id, Revision.table_name == table, Revision.state == "registered")
        .order_by(Revision.table_partition)
    )
    archived = ledger.scalar(
        select(func.coalesce(func.sum(IntervalRange.archived), 0)).where(IntervalRange.interval_id == interval_id)
    )
    return Holding(
        interval_id, interval.from_time, interval.to_time, tuple(merged(ranges)), tuple(rows), int(archived or 0)
    )


def revisions_with_dates(table: str, first: date, last: date) -> list[Revision]:
    """Registered revisions of an archive table whose partition's date lies in `[first, last]`."""
    with session() as ledger:
        return list(
            ledger.scalars(
                select(Revision).where(
                    Revision.table_name == table,
                    Revision.state == "registered",
                    Revision.table_partition >= f"date={first}",
                    Revision.table_partition < f"date={last + timedelta(days=1)}",
                )
            )
        )


def ranges_of_intervals(intervals: Iterable[int]) -> list[OffsetRange]:
    """The pinned ranges of the intervals, neighbours merged."""
    with session() as ledger:
        rows = ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id.in_(set(intervals))))
        return merged(
            OffsetRange(TopicPartition(r.topic, r.topic_partition), r.from_offset, r.until_offset) for r in rows
        )


def settled_batches(pipeline: str, until: datetime, outcomes: Sequence[str]) -> dict[int, list[OffsetRange]]:
    """Micro-batches with loose files of the outcomes, committed before `until`, wholly in registered intervals.

    A loose file is neither compacted nor removed.
    """
    with session() as ledger:
        loose = (
            select(LandingFile.micro_batch_id)
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(
                MicroBatch.pipeline == pipeline,
                MicroBatch.query == ARCHIVE,
                MicroBatch.committed_at < until,
                LandingFile.outcome.in_(outcomes),
                LandingFile.removed_at.is_(None),
                LandingFile.compacted_at.is_(None),
            )
        )
        batches: dict[int, list[tuple[str, OffsetRange]]] = defaultdict(list)
        for r in ledger.scalars(select(MicroBatchRange).where(MicroBatchRange.micro_batch_id.in_(loose))):
            tp = TopicPartition(r.topic, r.topic_partition)
            batches[r.micro_batch_id].append((r.topic_id, OffsetRange(tp, r.from_offset, r.until_offset)))
        registered = _registered(ledger, pipeline, [each for parts in batches.values() for _, each in parts])
    return {
        key: [each for _, each in parts]
        for key, parts in batches.items()
        if all(_lies_in(each, registered.get((topic_id, each.topic_partition), [])) for topic_id, each in parts)
    }


def _registered(
    ledger: Session, pipeline: str, ranges: Sequence[OffsetRange]
) -> dict[tuple[str, TopicPartition], list[OffsetRange]]:
    """The offsets of registered intervals around the ranges, per topic id and topic partition."""
    found: dict[tuple[str, TopicPartition], list[OffsetRange]] = defaultdict(list)
    for each in merged(ranges):
        for row, held in _registered_around(ledger, pipeline, each):
            found[row.topic_id, held.topic_partition].append(held)
    return {key: merged(parts) for key, parts in found.items()}


def _registered_around(ledger: Session, pipeline: str, each: OffsetRange) -> list[tuple[IntervalRange, OffsetRange]]:
    """The ranges of registered intervals that have offsets in common with one, as rows and as what they are."""
    tp = each.topic_partition
    rows = ledger.scalars(
        select(IntervalRange)
        .join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
        .where(
            IntervalRow.pipeline == pipeline,
            IntervalRow.state == "registered",
            IntervalRange.topic == tp.topic,
            IntervalRange.topic_partition == tp.partition,
            overlaps(IntervalRange, each),
        )
    )
    return [(row, OffsetRange(tp, row.from_offset, row.until_offset)) for row in rows]


def _lies_in(wanted: OffsetRange, wholes: Sequence[OffsetRange]) -> bool:
    return not len(wanted) or any(intersection(wanted, whole) == wanted for whole in wholes)


def files_of(batches: Iterable[int], outcomes: Sequence[str]) -> list[LandingFile]:
    """The files of micro-batches with those outcomes that are not removed, in the order of their commits."""
    with session() as ledger:
        return list(
            ledger.scalars(
                select(LandingFile)
                .where(
                    LandingFile.micro_batch_id.in_(set(batches)),
                    LandingFile.outcome.in_(outcomes),
                    LandingFile.removed_at.is_(None),
                )
                .order_by(LandingFile.id)
            )
        )


def files_at(pipeline: str, paths: Sequence[str]) -> list[LandingFile]:
    """What the ledger has of the pipeline in the files at these paths, removed or not."""
    found: list[LandingFile] = []
    with session() as ledger:
        for start in range(0, len(paths), _AT_ONCE):
            found += ledger.scalars(
                select(LandingFile)
                .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
                .where(MicroBatch.pipeline == pipeline, LandingFile.path.in_(paths[start : start + _AT_ONCE]))
                .order_by(LandingFile.id)
            )
    return found


def commit_days(batches: Iterable[int]) -> dict[int, date]:
    """The day (UTC) on which each micro-batch was committed."""
    with session() as ledger:
        rows = ledger.execute(select(MicroBatch.id, MicroBatch.committed_at).where(MicroBatch.id.in_(set(batches))))
        return {key: moment.date() for key, moment in rows}


def mark_removed(batches: Iterable[int]) -> None:
    """Say that the archived files of the micro-batches are no longer read."""
    with session() as ledger:
        ledger.execute(
            update(LandingFile)
            .where(
                LandingFile.micro_batch_id.in_(set(batches)),
                LandingFile.outcome == ARCHIVED,
                LandingFile.removed_at.is_(None),
            )
            .values(removed_at=func.now())
        )


def swap_files(files: Iterable[LandingFile], path: str, size: int) -> None:
    """Let the ledger find the rows of the files in the one at `path`, in one transaction."""
    with session() as ledger:
        ledger.execute(
            update(LandingFile)
            .where(LandingFile.id.in_({file.id for file in files}))
            .values(path=path, bytes=size, compacted_at=func.now())
        )
