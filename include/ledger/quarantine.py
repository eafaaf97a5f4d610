"""What the ledger knows of quarantined records: replayed, discarded, found still bad, diverted undecoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.models import (
    DivertedRecord,
    IntervalRow,
    LandingFile,
    MicroBatch,
    MicroBatchRange,
    QuarantineNote,
    Replay,
)
from include.offsets import Coordinates, OffsetRange, TopicPartition

REPLAY = "replay"
"""Query name of the micro-batches that replays land; they move no position."""


@dataclass(frozen=True, order=True)
class RecordKey:
    """A record for ever: a recreated topic's offsets mean other records."""

    topic: str
    topic_id: str
    partition: int
    offset: int

    @property
    def coordinates(self) -> Coordinates:
        """Topic, partition, offset."""
        return self.topic, self.partition, self.offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}"


@dataclass(frozen=True)
class Origin:
    """Where quarantined records of a topic partition come from: one micro-batch's range."""

    until_offset: int
    topic_id: str
    """Kafka's id of the topic when they were landed."""
    decoder_version: str | None


@dataclass(frozen=True)
class QuarantineFile:
    """A quarantine file with what its records cannot tell themselves. It may hold many micro-batches."""

    path: str
    origins: Mapping[TopicPartition, Sequence[Origin]]
    """Its micro-batches by topic partition, in the order of their offsets."""

    def origin(self, topic_partition: TopicPartition, offset: int) -> Origin:
        """Where the record at that offset comes from."""
        found = self.origins.get(topic_partition, ())
        at = bisect_right(found, offset, key=lambda origin: origin.until_offset)
        return found[at] if at < len(found) else Origin(offset + 1, "", None)


@dataclass(frozen=True)
class Decisions:
    """What was decided about a pipeline's quarantined records."""

    replays: Mapping[RecordKey, Replay]
    discards: Mapping[RecordKey, QuarantineNote]
    findings: Mapping[RecordKey, QuarantineNote]
    """The last thing a replay found about a record that is still bad."""
    intervals: Mapping[int, IntervalRow]
    """The intervals that deliver replayed records, by id."""


def lock(ledger: Session, pipeline: str) -> None:
    """Let one replay or discard at a time decide about the pipeline's quarantine, until the transaction ends."""
    ledger.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"quarantine:{pipeline}"})


def files(ledger: Session, pipeline: str, within: OffsetRange | None = None) -> list[QuarantineFile]:
    """The quarantine files of committed micro-batches, oldest first; `within`: those that may hold its offsets."""
    wanted = (
        select(
            LandingFile.path,
            MicroBatch.decoder_version,
            MicroBatchRange.topic,
            MicroBatchRange.topic_partition,
            MicroBatchRange.until_offset,
            MicroBatchRange.topic_id,
        )
        .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
        .join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)
        .where(
            MicroBatch.pipeline == pipeline,
            LandingFile.outcome == "quarantined",
            MicroBatchRange.from_offset < MicroBatchRange.until_offset,
        )
        .order_by(LandingFile.id)
    )
    if within is not None:
        tp = within.topic_partition
        wanted = wanted.where(
            MicroBatchRange.topic == tp.topic,
            MicroBatchRange.topic_partition == tp.partition,
            MicroBatchRange.from_offset < within.until_offset,
            MicroBatchRange.until_offset > within.from_offset,
        )
    found: dict[str, dict[TopicPartition, set[Origin]]] = {}
    for path, version, topic, partition, until, topic_id in ledger.execute(wanted):
        of_file = found.setdefault(path, {})
        of_file.setdefault(TopicPartition(topic, partition), set()).add(Origin(until, topic_id, version))
    return [
        QuarantineFile(path, {tp: sorted(each, key=lambda o: o.until_offset) for tp, each in origins.items()})
        for path, origins in found.items()
    ]


def decisions(ledger: Session, pipeline: str) -> Decisions:
    """Everything decided about the pipeline's quarantined records."""
    replays = {_key(row): row for row in ledger.scalars(select(Replay).where(Replay.pipeline == pipeline))}
    notes = select(QuarantineNote).where(QuarantineNote.pipeline == pipeline).order_by(QuarantineNote.id)
    discards: dict[RecordKey, QuarantineNote] = {}
    findings: dict[RecordKey, QuarantineNote] = {}
    for note in ledger.scalars(notes):
        (discards if note.kind == "discarded" else findings)[_key(note)] = note
    delivered = {row.interval_id for row in replays.values() if row.interval_id is not None}
    intervals = ledger.scalars(select(IntervalRow).where(IntervalRow.id.in_(delivered)))
    return Decisions(replays, discards, findings, {row.id: row for row in intervals})


def _key(row: Replay | QuarantineNote | DivertedRecord) -> RecordKey:
    return RecordKey(row.topic, row.topic_id, row.topic_partition, row.record_offset)


def add_note(
    ledger: Session,
    pipeline: str,
    record: RecordKey,
    *,
    kind: str,
    by: str,
    reason: str,
    detail: str = "",
    decoder_version: str = "",
) -> None:
    """Note a decision or a finding about a record."""
    ledger.add(
        QuarantineNote(
            pipeline=pipeline,
            topic=record.topic,
            topic_id=record.topic_id,
            topic_partition=record.partition,
            record_offset=record.offset,
            kind=kind,
            noted_by=by,
            reason=reason,
            detail=detail,
            decoder_version=decoder_version,
        )
    )


def next_replay(ledger: Session, pipeline: str) -> int:
    """Number of the pipeline's next replay; the caller holds `lock`."""
    wanted = select(func.max(MicroBatch.batch_id)).where(MicroBatch.pipeline == pipeline, MicroBatch.query == REPLAY)
    last = ledger.scalar(wanted)
    return 0 if last is None else last + 1


def assign_replays(ledger: Session, pipeline: str, interval_id: int) -> None:
    """Let an interval that is being pinned deliver what was replayed since the last one was.

    Called for each interval in the order of time, so the first one pinned after a replay delivers it,
    whichever of them is built first. An interval that is pinned again gets its replays back: deleting it
    has set them free in the same transaction.
    """
    ledger.execute(
        update(Replay)
        .where(Replay.pipeline == pipeline, Replay.interval_id.is_(None))
        .values(interval_id=interval_id)
        .execution_options(synchronize_session=False)
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
    """The replayed records that an interval delivers. All rows of a replay belong to one interval."""
    with session() as ledger:
        rows = ledger.scalars(select(Replay).where(Replay.interval_id == interval_id, Replay.outcome == "archived"))
        found = list(rows)
        batches = {row.micro_batch_id for row in found}
        paths = select(LandingFile.path).where(
            LandingFile.micro_batch_id.in_(batches), LandingFile.outcome == "archived"
        )
        keys = sorted(_key(row) for row in found)
        return ReplayedInto(len(found), keys[0] if keys else None, sorted(ledger.scalars(paths)))


def pinned_fates(pipeline: str, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> list[Coordinates]:
    """Records of the ranges that stay quarantined whatever the current code makes of them.

    These are the diverted ones, which must not be decoded, and the replayed ones, whose rows another
    interval delivers.
    """
    found: set[Coordinates] = set()
    with session() as ledger:
        for each in ranges:
            tp = each.topic_partition
            for model in (DivertedRecord, Replay):
                wanted = select(model.record_offset).where(
                    model.pipeline == pipeline,
                    model.topic == tp.topic,
                    model.topic_id == topic_ids[tp.topic],
                    model.topic_partition == tp.partition,
                    model.record_offset >= each.from_offset,
                    model.record_offset < each.until_offset,
                )
                found.update((tp.topic, tp.partition, offset) for offset in ledger.scalars(wanted))
    return sorted(found)


def diverted(pipeline: str, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> list[Coordinates]:
    """Diverted records at or above the positions (0 where there is none): those a query has still to pass."""
    with session() as ledger:
        rows = ledger.scalars(select(DivertedRecord).where(DivertedRecord.pipeline == pipeline))
        return sorted(
            _key(row).coordinates
            for row in rows
            if row.topic_id == topic_ids.get(row.topic)
            and row.record_offset >= positions.get(TopicPartition(row.topic, row.topic_partition), 0)
        )


def replayed_within(pipeline: str, ranges: Iterable[OffsetRange]) -> list[Coordinates]:
    """Coordinates of replayed records in the ranges: their rows lie in the tables of other intervals."""
    found: list[Coordinates] = []
    with session() as ledger:
        for each in ranges:
            wanted = select(Replay.topic, Replay.topic_partition, Replay.record_offset).where(
                Replay.pipeline == pipeline,
                Replay.topic == each.topic_partition.topic,
                Replay.topic_partition == each.topic_partition.partition,
                Replay.record_offset >= each.from_offset,
                Replay.record_offset < each.until_offset,
            )
            found += [(topic, partition, offset) for topic, partition, offset in ledger.execute(wanted)]
    return found
