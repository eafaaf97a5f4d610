"""What an erasure still has to do, found in the ledger each time, and how its steps are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.positions import ranges_with
from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.revisions import as_built, move
from include.ledger.intervals.states import RETIRED, IntervalState, RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import (
    Attempt,
    Build,
    ErasedRecord,
    Erasure,
    IntervalRow,
    LandingFileRow,
    MicroBatch,
    MicroBatchRange,
    Revision,
)
from include.ledger.quarantine import REPLAY, RecordKey
from include.offsets import Coordinates, Fate
from include.times import Interval


@dataclass(frozen=True)
class Begun:
    """An erasure that was begun."""

    id: int
    pipeline: str
    columns: tuple[str, ...]
    reason: str
    by: str
    begun_at: datetime
    ended_at: datetime | None
    salt: str
    key_hashes: tuple[str, ...]
    counts: Mapping[str, Any]
    intervals: tuple[int, ...]
    last_build: int
    generation: int | None


def _begun(row: Erasure) -> Begun:
    return Begun(
        row.id,
        row.pipeline,
        tuple(row.columns),
        row.reason,
        row.begun_by,
        row.begun_at,
        row.ended_at,
        row.salt,
        tuple(row.key_hashes),
        dict(row.counts),
        tuple(row.intervals),
        row.last_build,
        row.generation,
    )


def unfinished(pipeline: str) -> Begun | None:
    """Return the erasure of the pipeline that is not finished."""
    with session() as ledger:
        row = ledger.scalar(select(Erasure).where(Erasure.pipeline == pipeline, Erasure.ended_at.is_(None)))
        return _begun(row) if row is not None else None


def erasures(pipeline: str) -> list[Begun]:
    """Return all erasures of the pipeline, oldest first."""
    with session() as ledger:
        return [
            _begun(row)
            for row in ledger.scalars(select(Erasure).where(Erasure.pipeline == pipeline).order_by(Erasure.id))
        ]


def records_of(erasure: int) -> frozenset[RecordKey]:
    """Return the records of an erasure."""
    wanted = select(ErasedRecord.topic, ErasedRecord.topic_id, ErasedRecord.topic_partition, ErasedRecord.record_offset)
    with session() as ledger:
        rows = ledger.execute(wanted.where(ErasedRecord.erasure_id == erasure)).tuples()
        return frozenset(RecordKey(*row) for row in rows)


_NO_TWIN_ERASED = """NOT EXISTS (
        SELECT FROM erased_records o
        WHERE o.pipeline = e.pipeline AND o.topic = e.topic AND o.topic_id = r.topic_id
            AND o.topic_partition = e.topic_partition AND o.record_offset = e.record_offset
    )"""

_TWINS = f"""
    SELECT e.topic, e.topic_partition, e.record_offset, i.from_time, i.to_time
    FROM erased_records e
    CROSS JOIN LATERAL {ranges_with("interval_ranges", "e", "<>")} AS r
    CROSS JOIN LATERAL (
        SELECT i.from_time, i.to_time FROM intervals i
        WHERE i.id = r.interval_id AND i.pipeline = e.pipeline OFFSET 0
    ) AS i
    WHERE e.erasure_id = :erasure AND {_NO_TWIN_ERASED}
    UNION
    SELECT e.topic, e.topic_partition, e.record_offset, i.from_time, i.to_time
    FROM erased_records e
    JOIN replays r USING (pipeline, topic, topic_partition, record_offset)
    JOIN intervals i ON i.id = r.interval_id
    WHERE e.erasure_id = :erasure AND r.topic_id <> e.topic_id AND {_NO_TWIN_ERASED}
"""


def twins_of(erasure: int) -> dict[Coordinates, list[str]]:
    """Return the labels of intervals with an unerased record of another incarnation at an erased record's offset.

    Its rows are where its offset is, or, once it was replayed, in the interval that delivers it.
    """
    found: dict[Coordinates, list[str]] = {}
    with session() as ledger:
        for topic, partition, offset, begin, end in ledger.execute(text(_TWINS), {"erasure": erasure}):
            found.setdefault((topic, partition, offset), []).append(Interval(begin, end).label)
    return found


_FILES = f"""
    SELECT DISTINCT f.path
    FROM erased_records e
    CROSS JOIN LATERAL {ranges_with("micro_batch_ranges", "e")} AS r
    CROSS JOIN LATERAL (
        SELECT f.path
        FROM micro_batches b JOIN landing_files f ON f.micro_batch_id = b.id
        WHERE b.id = r.micro_batch_id AND b.pipeline = e.pipeline AND b.query = 'archive'
            AND f.removed_at IS NULL AND f.fate IN ('archived', 'quarantined')
        OFFSET 0
    ) AS f
    WHERE e.erasure_id = :erasure
    UNION
    SELECT f.path
    FROM landing_files f
    JOIN micro_batches b ON b.id = f.micro_batch_id
    WHERE b.pipeline = :pipeline AND b.query = :replay AND f.removed_at IS NULL
"""


def files_to_look_at(erasure: Begun) -> list[str]:
    """Return the paths of landing and quarantine files that may hold records of an erasure, those of replays too."""
    with session() as ledger:
        named = {"erasure": erasure.id, "pipeline": erasure.pipeline, "replay": REPLAY}
        return sorted(ledger.scalars(text(_FILES), named))


def swap_file(path: str, file: LandingFile, removed: Collection[Coordinates], rows: Mapping[Coordinates, int]) -> None:
    """Record that a file without some records lies where `file` says, and no longer at `path`, in one transaction.

    `rows`: how many rows each of the removed records had. `file.rows` counts all micro-batches in it.
    Raises AnotherWriter when nothing lies at `path` any more.
    """
    low, high = file.event_times or (None, None)
    with session() as ledger:
        parts = ledger.scalars(select(LandingFileRow).where(LandingFileRow.path == path).with_for_update()).all()
        if not parts:
            pipeline = path.split("/")[1]
            raise AnotherWriter(
                f"{path} was merged while its records were erased: the erasure is unfinished",
                remedy=f"finish it: ./tidemark erase {pipeline} --resume",
                pipeline=pipeline,
            )
        fewer = _by_batch(ledger, parts, removed, rows)
        for part in parts:
            part.path, part.bytes = file.path, file.bytes
            part.rows -= fewer[part.micro_batch_id]
            if part.fate == Fate.ARCHIVED:
                part.event_time_min, part.event_time_max = low, high


def _by_batch(
    ledger: Session, parts: Sequence[LandingFileRow], removed: Collection[Coordinates], rows: Mapping[Coordinates, int]
) -> Counter[int]:
    batches = sorted({part.micro_batch_id for part in parts})
    if len(batches) == 1:
        return Counter({batches[0]: sum(rows[each] for each in removed)})
    ranges = ledger.scalars(select(MicroBatchRange).where(MicroBatchRange.micro_batch_id.in_(batches))).all()
    fewer: Counter[int] = Counter()
    for topic, partition, offset in removed:
        owner = next(
            r.micro_batch_id
            for r in ranges
            if (r.topic, r.topic_partition) == (topic, partition) and r.from_offset <= offset < r.until_offset
        )
        fewer[owner] += rows[topic, partition, offset]
    return fewer


def intervals_to_build(erasure: Begun) -> list[PinnedInterval]:
    """Return the registered intervals whose registered revisions were built before the erasure, oldest first."""
    with session() as ledger:
        return [
            pinned_of(ledger, row) for row in registered(ledger, erasure) if _old(ledger, row.id, erasure.last_build)
        ]


def attempts_to_announce(erasure: Begun) -> list[int]:
    """Return the attempts whose builds replaced the old revisions, and which nobody has announced."""
    with session() as ledger:
        found = []
        for row in registered(ledger, erasure):
            wanted = (
                select(Attempt.id)
                .join(Build, Build.attempt_id == Attempt.id)
                .where(Build.interval_id == row.id, Build.published_at.is_not(None), Build.id > erasure.last_build)
                .where(Attempt.ended_at.is_(None))
                .order_by(Build.id.desc())
                .limit(1)
            )
            found += list(ledger.scalars(wanted))
        return found


def registered(ledger: Session, erasure: Begun) -> Sequence[IntervalRow]:
    """Return the intervals of an erasure that it builds again: those that are or were registered, oldest first."""
    wanted = select(IntervalRow).where(IntervalRow.id.in_(list(erasure.intervals)))
    ever = select(Revision.id).where(
        Revision.interval_id == IntervalRow.id,
        Revision.state.in_((RevisionState.REGISTERED, RevisionState.REGISTERING)),
    )
    is_registered = (IntervalRow.state == IntervalState.REGISTERED) | ever.exists()
    return ledger.scalars(wanted.where(is_registered).order_by(IntervalRow.from_time)).all()


def _old(ledger: Session, interval: int, last_build: int) -> bool:
    newest = ledger.scalar(
        select(func.max(Build.id)).where(Build.interval_id == interval, Build.published_at.is_not(None))
    )
    return newest is None or newest <= last_build


def retire(erasure: Begun) -> list[BuiltRevision]:
    """Mark the old revisions of the intervals as removed, and return them; repeating it changes nothing."""
    with session() as ledger:
        wanted = select(Revision).where(
            Revision.interval_id.in_(list(erasure.intervals)),
            Revision.state.in_({*RETIRED, RevisionState.REMOVED}),
            (Revision.build_id.is_(None)) | (Revision.build_id <= erasure.last_build),
        )
        rows = ledger.scalars(wanted.order_by(Revision.location).with_for_update()).all()
        for row in rows:
            move(row, RevisionState.REMOVED)
        return [as_built(row) for row in rows]


def view_is_built(pipeline: str, view: str, query_id: str, version: int) -> bool:
    """Return whether a speed view has committed anything of a generation, its base or a micro-batch."""
    wanted = select(MicroBatch.id).where(
        MicroBatch.pipeline == pipeline,
        ((MicroBatch.query == view) & (MicroBatch.batch_id > version)) | (MicroBatch.query_id == query_id),
    )
    with session() as ledger:
        return ledger.scalar(wanted.limit(1)) is not None


def intervals_to_report_again(erasure: Begun) -> list[Interval]:
    """Return the intervals whose last report may show the records, oldest first."""
    with session() as ledger:
        rows = ledger.scalars(select(IntervalRow).where(IntervalRow.id.in_(list(erasure.intervals))))
        old = [row for row in rows if _old(ledger, row.id, erasure.last_build)]
        return sorted((Interval(row.from_time, row.to_time) for row in old), key=lambda each: each.from_time)


def finish(erasure: int, counts: Mapping[str, Any]) -> Begun:
    """Note that an erasure is finished; its counts come from the ledger, however often it was killed."""
    with session() as ledger:
        row = ledger.get_one(Erasure, erasure, with_for_update=True)
        begun = _begun(row)
        written = select(func.count(LandingFileRow.path.distinct())).where(
            LandingFileRow.path.like(f"%-e{erasure}.parquet"),
            LandingFileRow.micro_batch_id.in_(select(MicroBatch.id).where(MicroBatch.pipeline == row.pipeline)),
        )
        done = {"rewritten_files": ledger.scalar(written), "built_intervals": len(registered(ledger, begun))}
        row.counts = {**row.counts, **done, **counts}
        row.ended_at = row.ended_at or func.now()
        ledger.flush()
        ledger.refresh(row)
        return _begun(row)
