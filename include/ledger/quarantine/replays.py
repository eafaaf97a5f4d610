"""Replays: quarantined records that the current code decodes, their rows, and the interval that delivers them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Select, exists, func, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from include.errors import AnotherWriter, UsageError
from include.ledger.archive import micro_batches
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.archive.positions import of_query
from include.ledger.database import session
from include.ledger.intervals.pinned import PinnedInterval
from include.ledger.models import (
    DivertedRecord,
    ErasedRecord,
    IntervalRange,
    LandingFileRow,
    MicroBatch,
    QuarantineNote,
    Replay,
)
from include.ledger.quarantine.decisions import decisions_of, key_of, note_row, storable
from include.ledger.quarantine.records import RecordKey
from include.offsets import Coordinates, Fate, OffsetRange, TopicPartition

REPLAY = "replay"
"""Query name of the micro-batches that replays land; they move no position."""


@dataclass
class LandedReplay:
    """What became of the records that a replay tried, and the files of those with rows."""

    fates: dict[RecordKey, str] = field(default_factory=dict)
    """Fate of the records that pass: archived or empty."""
    failures: dict[RecordKey, tuple[str, str]] = field(default_factory=dict)
    """Reason and detail of the records that still fail."""
    files: list[LandingFile] = field(default_factory=list)


def next_replay(pipeline: str) -> int:
    """Return the number of the pipeline's next replay. The caller is `deciding`."""
    wanted = select(func.max(MicroBatch.batch_id)).where(of_query(pipeline, REPLAY))
    with session() as ledger:
        last = ledger.scalar(wanted)
    return 0 if last is None else last + 1


def record_replay(
    pipeline: str, number: int, landed: LandedReplay, *, by: str, decoder_version: str, seconds: float
) -> None:
    """Commit a replay in one transaction: its micro-batch, files and records, and what still fails.

    No micro-batch is written when no record passed; a failure that equals the last one is not repeated.
    Raises AnotherWriter, with nothing committed, when another replay has delivered one of the records, or an erasure
    has taken one, also one that still fails: the caller's lock may have been lost just now.
    """
    # Here, because erasures import what is decided about the quarantine.
    from include.ledger.erasures.coordinates import lock_erasing

    batch = BatchCommit(
        pipeline,
        REPLAY,
        f"{REPLAY}:{pipeline}",
        number,
        files=landed.files,
        rows=sum(file.rows for file in landed.files),
        seconds=seconds,
        decoder_version=decoder_version,
    )
    try:
        with session() as ledger:
            lock_erasing(ledger, pipeline)
            _check_erased(ledger, pipeline, landed.fates.keys() | landed.failures.keys())
            if landed.fates:
                row = micro_batches.write(ledger, 0, batch, records=len(landed.fates))
                for record, fate in sorted(landed.fates.items()):
                    ledger.add(_replay_row(batch, record, fate, by, row.id))
            ledger.add_all(_new_failures(ledger, batch, landed, by))
    except IntegrityError as error:
        raise AnotherWriter(
            "another replay has delivered these records meanwhile; nothing was committed",
            remedy="replay again: what is delivered is skipped",
            pipeline=pipeline,
        ) from error


def _check_erased(ledger: Session, pipeline: str, records: Collection[RecordKey]) -> None:
    """Raise AnotherWriter when one of the records was erased: the detail of its failure may have its content."""
    offsets = [each.offset for each in records]
    erased = select(
        ErasedRecord.topic, ErasedRecord.topic_id, ErasedRecord.topic_partition, ErasedRecord.record_offset
    ).where(
        ErasedRecord.pipeline == pipeline,
        ErasedRecord.topic.in_({each.topic for each in records}),
        ErasedRecord.record_offset.between(min(offsets, default=0), max(offsets, default=0)),
    )
    taken = {RecordKey(*row) for row in ledger.execute(erased).tuples()}.intersection(records)
    if taken:
        raise AnotherWriter(
            f"{min(taken)} was erased since it was chosen; nothing was committed",
            remedy="replay again: what is erased is no longer there",
            pipeline=pipeline,
        )


def _new_failures(ledger: Session, batch: BatchCommit, landed: LandedReplay, by: str) -> Iterator[QuarantineNote]:
    """Yield notes of the failures that differ from the last ones."""
    version = batch.decoder_version or ""
    last = decisions_of(ledger, batch.pipeline).failures
    for record, (reason, detail) in sorted(landed.failures.items()):
        before, now = last.get(record), (storable(reason), storable(detail), version)
        if before is None or (before.reason, before.detail, before.decoder_version) != now:
            yield note_row(
                batch.pipeline, record, kind="failed", by=by, reason=reason, detail=detail, decoder_version=version
            )


def _replay_row(batch: BatchCommit, record: RecordKey, fate: str, by: str, micro_batch: int) -> Replay:
    return Replay(
        pipeline=batch.pipeline,
        topic=record.topic,
        topic_id=record.topic_id,
        topic_partition=record.partition,
        record_offset=record.offset,
        fate=fate,
        replayed_by=by,
        decoder_version=batch.decoder_version,
        micro_batch_id=micro_batch,
    )


def assign_replays(ledger: Session, pipeline: str, interval_id: int) -> None:
    """Let an interval that is being pinned deliver what was replayed since the last one was pinned.

    Called for the interval that a run asked for: those pinned on the way to it may never be built. So the first
    interval that is asked for after a replay delivers it, and still does when it is pinned again.

    Coordinates are unique within an interval, and a topic that was created again has other records at those of the one
    before: a replay waits for a later interval while this one, or another replay that it delivers, has such a record.
    """
    is_open = Replay.pipeline == pipeline, Replay.interval_id.is_(None)
    ledger.execute(
        update(Replay)
        .where(*is_open, Replay.micro_batch_id.not_in(_with_namesakes(pipeline, interval_id)))
        .values(interval_id=interval_id)
        .execution_options(synchronize_session=False)
    )


def _with_namesakes(pipeline: str, interval_id: int) -> Select[int]:
    """Return the open replays with a record at whose coordinates the interval or an earlier one has another."""
    one, other = aliased(Replay), aliased(Replay)
    is_open, other_is_open = (
        (each.pipeline == pipeline, each.interval_id.is_(None), each.fate == Fate.ARCHIVED) for each in (one, other)
    )
    in_earlier = exists().where(
        *other_is_open,
        other.topic == one.topic,
        other.topic_id != one.topic_id,
        other.topic_partition == one.topic_partition,
        other.record_offset == one.record_offset,
        other.micro_batch_id < one.micro_batch_id,
    )
    return select(one.micro_batch_id).where(*is_open, or_(_is_in_ranges(interval_id, one), in_earlier))


def _is_in_ranges(interval_id: int, replay: type[Replay]) -> ColumnElement[bool]:
    """Return the condition that an interval's ranges hold another record at the coordinates of a replayed one."""
    return exists().where(
        IntervalRange.interval_id == interval_id,
        IntervalRange.topic == replay.topic,
        IntervalRange.topic_id != replay.topic_id,
        IntervalRange.topic_partition == replay.topic_partition,
        IntervalRange.from_offset <= replay.record_offset,
        IntervalRange.until_offset > replay.record_offset,
    )


def check_namesakes(ledger: Session, pinned: PinnedInterval) -> None:
    """Raise UsageError when an interval, as its ranges are now, has another record at a replay's coordinates.

    The replay stays with the interval: a registered revision may have its rows.
    """
    is_theirs = Replay.interval_id == pinned.id, Replay.fate == Fate.ARCHIVED
    with_namesake = select(Replay).where(*is_theirs, _is_in_ranges(pinned.id, Replay))
    first = ledger.scalar(with_namesake.order_by(Replay.topic, Replay.topic_partition, Replay.record_offset).limit(1))
    if first is not None:
        raise UsageError(
            f"{pinned.interval} cannot be pinned again: it delivers the replay of {key_of(first)}, where the topic, "
            "created again since, has another record",
            remedy="run it with the ranges it has; late records belong to a later interval",
            pipeline=pinned.pipeline,
        )


@dataclass(frozen=True)
class ReplayedInto:
    """What replays put into an interval."""

    records: int
    """How many records with rows."""
    first: RecordKey | None
    paths: Sequence[str]
    """Files of their rows, below the lake."""


def replayed_into(interval_id: int) -> ReplayedInto:
    """Return the replayed records that an interval delivers. All rows of a replay belong to one interval."""
    return replays_into([interval_id])


def replays_into(intervals: Collection[int]) -> ReplayedInto:
    """Return the replayed records that several intervals deliver."""
    are_theirs = Replay.interval_id.in_(intervals), Replay.fate == Fate.ARCHIVED
    in_order = Replay.topic, Replay.topic_id, Replay.topic_partition, Replay.record_offset
    paths = select(LandingFileRow.path).where(
        LandingFileRow.micro_batch_id.in_(select(Replay.micro_batch_id).where(*are_theirs)),
        LandingFileRow.fate == Fate.ARCHIVED,
    )
    with session() as ledger:
        records = ledger.scalar(select(func.count()).select_from(Replay).where(*are_theirs)) or 0
        first = ledger.scalar(select(Replay).where(*are_theirs).order_by(*in_order).limit(1))
        return ReplayedInto(records, key_of(first) if first else None, sorted(ledger.scalars(paths)))


def pinned_fates(pipeline: str, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> list[Coordinates]:
    """Return the records of the ranges that stay quarantined whatever the current code makes of them.

    These are the diverted ones, which must not be decoded, and the replayed ones, whose rows another
    interval delivers.
    """
    return _within(pipeline, ranges, topic_ids, DivertedRecord, Replay)


def discarded(pipeline: str, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> list[Coordinates]:
    """Return the records of the ranges that a person has discarded."""
    return _within(pipeline, ranges, topic_ids, QuarantineNote, only=QuarantineNote.kind == "discarded")


def _within(
    pipeline: str,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str],
    *models: type[DivertedRecord | Replay | QuarantineNote],
    only: ColumnElement[bool] | None = None,
) -> list[Coordinates]:
    coordinates: set[Coordinates] = set()
    with session() as ledger:
        for each in ranges:
            tp = each.topic_partition
            for model in models:
                wanted = select(model.record_offset).where(
                    true() if only is None else only,
                    model.pipeline == pipeline,
                    model.topic == tp.topic,
                    model.topic_id == topic_ids[tp.topic],
                    model.topic_partition == tp.partition,
                    model.record_offset >= each.from_offset,
                    model.record_offset < each.until_offset,
                )
                coordinates.update((tp.topic, tp.partition, offset) for offset in ledger.scalars(wanted))
    return sorted(coordinates)


def diverted(pipeline: str, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> list[Coordinates]:
    """Return diverted records at or above the positions (0 where there is none): a query has yet to pass these."""
    with session() as ledger:
        rows = ledger.scalars(select(DivertedRecord).where(DivertedRecord.pipeline == pipeline))
        return sorted(
            key_of(row).coordinates
            for row in rows
            if row.topic_id == topic_ids.get(row.topic)
            and row.record_offset >= positions.get(TopicPartition(row.topic, row.topic_partition), 0)
        )


def replayed_within(pipeline: str, ranges: Iterable[OffsetRange]) -> list[Coordinates]:
    """Return the coordinates of replayed records in the ranges: their rows lie in the tables of other intervals."""
    coordinates: list[Coordinates] = []
    with session() as ledger:
        for each in ranges:
            wanted = select(Replay.topic, Replay.topic_partition, Replay.record_offset).where(
                Replay.pipeline == pipeline,
                Replay.topic == each.topic_partition.topic,
                Replay.topic_partition == each.topic_partition.partition,
                Replay.record_offset >= each.from_offset,
                Replay.record_offset < each.until_offset,
            )
            coordinates += [(topic, partition, offset) for topic, partition, offset in ledger.execute(wanted)]
    return coordinates
