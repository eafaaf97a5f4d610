"""Landing files: what committed micro-batches have in which file of landing or quarantine.

Micro-batch numbers grow in the order of commits within a pipeline (each commit holds the lease), so a reader that has
seen all files up to one number misses none when it asks for what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Boolean, ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session

from include.ledger.archive.positions import ARCHIVE, of_query, overlapping, topic_ids
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange, Replay
from include.offsets import Fate, OffsetRange

_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)

_AT_ONCE = 1000
"""Paths in one query."""

_ARCHIVED = (LandingFileRow.fate == Fate.ARCHIVED, LandingFileRow.removed_at.is_(None))
"""Files with archived rows that are read from there."""


@dataclass(frozen=True)
class LandingFile:
    """What one micro-batch has in one file; a compacted file holds what many micro-batches have."""

    fate: Fate
    """Fate of all records with rows in it: archived, empty or quarantined."""
    path: str
    """Below the lake."""
    rows: int
    """Rows of the micro-batch."""
    bytes: int
    """Size of the whole file."""
    event_times: tuple[datetime, datetime] | None = None
    """Earliest and latest event time in the file, if its footer has them."""
    id: int = 0
    """The ledger's number of it; 0 before the commit."""
    micro_batch: int = 0
    """The ledger's number of the micro-batch; 0 before the commit."""
    committed_at: datetime | None = None
    is_compacted: bool = False
    """Whether its rows were merged into a file of the day."""
    removed_at: datetime | None = None
    """Since when its rows are read from registered revisions; None while they are read from it."""


def _files(*conditions: ColumnElement[bool]) -> Select[LandingFileRow, datetime]:
    return (
        select(LandingFileRow, MicroBatch.committed_at)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(*conditions)
        .order_by(LandingFileRow.id)
    )


def _file_of(row: LandingFileRow, committed_at: datetime) -> LandingFile:
    times = (
        (row.event_time_min, row.event_time_max)
        if row.event_time_min is not None and row.event_time_max is not None
        else None
    )
    return LandingFile(
        Fate(row.fate),
        row.path,
        row.rows,
        row.bytes,
        times,
        row.id,
        row.micro_batch_id,
        committed_at,
        row.compacted_at is not None,
        row.removed_at,
    )


def row_of(file: LandingFile, micro_batch: int) -> LandingFileRow:
    """Return the ledger's row of a file of a micro-batch that is being committed."""
    low, high = file.event_times or (None, None)
    return LandingFileRow(
        micro_batch_id=micro_batch,
        fate=file.fate,
        path=file.path,
        rows=file.rows,
        bytes=file.bytes,
        event_time_min=low,
        event_time_max=high,
    )


def files_covering(
    pipeline: str, ranges: Iterable[OffsetRange], fate: Fate, *, committed_from: datetime | None = None
) -> list[str]:
    """Return the paths of the files whose micro-batches overlap the ranges, each range in its incarnation.

    With a time, only those of micro-batches committed from then on. Files that housekeeping has removed are not among
    them (`include/ledger/archive/removal.py`).
    """
    with session() as ledger:
        return covering(ledger, pipeline, ranges, fate, committed_from)


def covering(
    ledger: Session,
    pipeline: str,
    ranges: Iterable[OffsetRange],
    fate: Fate,
    committed_from: datetime | None = None,
) -> list[str]:
    """Return `files_covering` within the caller's transaction."""
    paths: set[str] = set()
    current = topic_ids(ledger, pipeline)
    for each in ranges:
        if not len(each):
            continue
        named = replace(each, topic_id=each.topic_id or current.get(each.topic_partition.topic, ""))
        wanted = (
            select(LandingFileRow.path)
            .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
            .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
            .where(
                of_query(pipeline, ARCHIVE),
                LandingFileRow.fate == fate,
                LandingFileRow.removed_at.is_(None),
                overlapping(named),
            )
        )
        if committed_from is not None:
            wanted = wanted.where(MicroBatch.committed_at >= committed_from)
        paths.update(ledger.scalars(wanted))
    return sorted(paths)


def with_event_times(ledger: Session, pipeline: str, low: datetime, high: datetime) -> list[str]:
    """Return the paths of the archive query's files that may hold an event in `[low, high)`; not those of replays."""
    wanted = (
        select(LandingFileRow.path)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(of_query(pipeline, ARCHIVE), *_ARCHIVED, may_hold_events(low, high))
    )
    return sorted(ledger.scalars(wanted))


def may_hold_events(low: datetime, high: datetime) -> ColumnElement[bool]:
    """Return the condition that a file may hold an event in `[low, high)`; unknown times are unbounded.

    The index over event times answers it: old files cost nothing.
    """
    times = func.tstzrange(LandingFileRow.event_time_min, LandingFileRow.event_time_max, "[]")
    return times.op("&&", return_type=Boolean())(func.tstzrange(low, high))


def topic_ids_of_files(paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return, by path, the topics that the file's micro-batches read, or whose records a replay put there, with ids.

    No file holds two incarnations of a topic. A topic of a replay's file that is missing here has erased rows there
    only: a record's replay is forgotten when its erasure begins, its row some time later.
    """
    by_path: dict[str, dict[str, str]] = {}
    with session() as ledger:
        for start in range(0, len(paths), _AT_ONCE):
            for model in (MicroBatchRange, Replay):
                rows = ledger.execute(
                    select(LandingFileRow.path, model.topic, model.topic_id)
                    .join(model, model.micro_batch_id == LandingFileRow.micro_batch_id)
                    .where(LandingFileRow.path.in_(paths[start : start + _AT_ONCE]))
                    .distinct()
                )
                for path, topic, topic_id in rows:
                    by_path.setdefault(path, {})[topic] = topic_id
    return {path: by_path.get(path, {}) for path in paths}


def before_events(pipeline: str, since: datetime) -> int:
    """Return the number before the first micro-batch with an event at `since` or later, removed files left out.

    Return the last number when there is none yet; 0 for a pipeline without commits.
    """
    with session() as ledger:
        first = ledger.scalar(
            select(func.min(MicroBatch.id))
            .join(LandingFileRow, LandingFileRow.micro_batch_id == MicroBatch.id)
            .where(of_query(pipeline, ARCHIVE), *_ARCHIVED, may_hold_events(since, _END_OF_TIME))
        )
        last = ledger.scalar(select(func.max(MicroBatch.id)).where(of_query(pipeline, ARCHIVE)))
    return first - 1 if first is not None else last or 0


def committed_until(pipeline: str, after: int, most_rows: int | None) -> int:
    """Return the last micro-batch after `after` with at most `most_rows` in between, but at least one micro-batch.

    Those without an archived file, or whose files are removed, do not count. Return `after` when there is none since.
    """
    rows = func.sum(MicroBatch.rows).over(order_by=MicroBatch.id)
    has_files = exists().where(LandingFileRow.micro_batch_id == MicroBatch.id, *_ARCHIVED)
    counted = (
        select(MicroBatch.id, rows.label("so_far"), func.row_number().over(order_by=MicroBatch.id).label("place"))
        .where(of_query(pipeline, ARCHIVE), MicroBatch.id > after, has_files)
        .subquery()
    )
    wanted = select(func.max(counted.c.id))
    if most_rows is not None:
        wanted = wanted.where((counted.c.so_far <= most_rows) | (counted.c.place == 1))
    with session() as ledger:
        return ledger.scalar(wanted) or after


def archived_between(pipeline: str, after: int, until: int) -> list[LandingFile]:
    """Return the archived files of the micro-batches after `after` up to `until`, in order; not the removed ones."""
    wanted = _files(of_query(pipeline, ARCHIVE), MicroBatch.id > after, MicroBatch.id <= until, *_ARCHIVED)
    with session() as ledger:
        return [_file_of(*row) for row in ledger.execute(wanted)]


def paths_of(pipeline: str, fate: Fate) -> list[str]:
    """Return the paths of all committed files of a fate, in the order of their commits."""
    with session() as ledger:
        return [row.path for row, _ in ledger.execute(_files(of_query(pipeline, ARCHIVE), LandingFileRow.fate == fate))]


def files_of(batches: Iterable[int], fates: Sequence[Fate]) -> list[LandingFile]:
    """Return the files of micro-batches with those fates that are not removed, in the order of their commits."""
    wanted = _files(
        LandingFileRow.micro_batch_id.in_(set(batches)),
        LandingFileRow.fate.in_(fates),
        LandingFileRow.removed_at.is_(None),
    )
    with session() as ledger:
        return [_file_of(*row) for row in ledger.execute(wanted)]


def files_at(pipeline: str, paths: Sequence[str]) -> list[LandingFile]:
    """Return what the pipeline's micro-batches have in the files at these paths, removed or not."""
    files: list[LandingFile] = []
    with session() as ledger:
        for start in range(0, len(paths), _AT_ONCE):
            wanted = _files(MicroBatch.pipeline == pipeline, LandingFileRow.path.in_(paths[start : start + _AT_ONCE]))
            files += [_file_of(*row) for row in ledger.execute(wanted)]
    return files


def is_to_be_there(pipeline: str, path: str) -> bool:
    """Return whether a file has to lie at this path: not once it was merged or removed, or an erasure wrote it anew."""
    return any(each.removed_at is None for each in files_at(pipeline, [path]))


def files_to_be_there(pipeline: str) -> list[LandingFile]:
    """Return each file that must lie in the pipeline's landing or quarantine, those of replays too, once, by path.

    `rows` are those of all its micro-batches together, `micro_batch` is the first of them.
    """
    wanted = (
        select(
            func.min(LandingFileRow.fate),
            LandingFileRow.path,
            func.sum(LandingFileRow.rows),
            func.max(LandingFileRow.bytes),
            func.min(LandingFileRow.micro_batch_id),
        )
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(MicroBatch.pipeline == pipeline, LandingFileRow.removed_at.is_(None))
        .group_by(LandingFileRow.path)
        .order_by(LandingFileRow.path)
    )
    with session() as ledger:
        return [
            LandingFile(Fate(fate), path, int(rows), size, micro_batch=micro_batch)
            for fate, path, rows, size, micro_batch in ledger.execute(wanted)
        ]


def have_namesakes(pipeline: str, files: Sequence[LandingFile]) -> bool:
    """Return whether a topic was created again while the files were landed: then its offsets name two records each."""
    batches = [file.micro_batch for file in files]
    wanted = (
        select(MicroBatchRange.topic)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(MicroBatch.pipeline == pipeline, MicroBatch.id.between(min(batches), max(batches)))
        .group_by(MicroBatchRange.topic)
        .having(func.count(MicroBatchRange.topic_id.distinct()) > 1)
    )
    with session() as ledger:
        return ledger.scalar(wanted.limit(1)) is not None
