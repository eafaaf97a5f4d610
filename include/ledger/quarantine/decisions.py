"""What was decided about quarantined records: replayed, discarded, or tried and still bad."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.connection import check_version
from include.ledger.database import session
from include.ledger.held_locks import Check, held_by, held_lock, held_names
from include.ledger.models import DivertedRecord, IntervalRow, QuarantineNote, Replay
from include.ledger.quarantine.records import RecordKey
from include.times import Interval

_PATIENCE = timedelta(minutes=10)
"""How long a replay or discard waits for another one; a replay of everything takes minutes."""


@dataclass(frozen=True)
class Replayed:
    """A replay let the record through."""

    fate: str
    """archived, or empty: valid, with nothing to archive."""
    replayed_at: datetime
    replayed_by: str
    interval: Interval | None
    """The interval that delivers its rows; None until the next one is pinned."""


@dataclass(frozen=True)
class Note:
    """The record was discarded, or a replay found it still bad."""

    noted_at: datetime
    noted_by: str
    reason: str
    """Why it was discarded, or the reason code that the replay found."""
    detail: str
    decoder_version: str


@dataclass(frozen=True)
class Decisions:
    """What was decided about a pipeline's quarantined records."""

    replays: Mapping[RecordKey, Replayed]
    discards: Mapping[RecordKey, Note]
    failures: Mapping[RecordKey, Note]
    """The last thing a replay found about a record that is still bad."""


@contextmanager
def deciding(pipeline: str, patience: timedelta = _PATIENCE) -> Iterator[Check]:
    """Let one replay or discard at a time decide about the pipeline's quarantine, during the block.

    Yields a function that raises when the lock was lost: call it before each change.
    Raises AnotherWriter when another one does not end within `patience`, UsageError when newer code has migrated the
    ledger.
    """
    check_version()
    with held_lock(_name(pipeline), patience) as lock:
        if lock is None:
            raise AnotherWriter(
                f"a replay or discard of its quarantine is under way{held_by(_name(pipeline))}",
                remedy="wait for its end",
                pipeline=pipeline,
            )
        yield lock.check


def is_being_decided(pipeline: str) -> bool:
    """Return whether a replay or discard is under way. It looks without the lock, which others may take meanwhile."""
    return bool(held_names([_name(pipeline)]))


def _name(pipeline: str) -> str:
    return f"quarantine:{pipeline}"


def decisions(pipeline: str, offsets: Collection[int] | None = None) -> Decisions:
    """Return what was decided about the pipeline's quarantined records: all, or those at some offsets."""
    with session() as ledger:
        return decisions_of(ledger, pipeline, offsets)


def decisions_of(ledger: Session, pipeline: str, offsets: Collection[int] | None = None) -> Decisions:
    """Return `decisions` within a transaction."""
    replayed = (
        select(Replay, IntervalRow)
        .join(IntervalRow, IntervalRow.id == Replay.interval_id, isouter=True)
        .where(Replay.pipeline == pipeline)
    )
    notes = select(QuarantineNote).where(QuarantineNote.pipeline == pipeline).order_by(QuarantineNote.id)
    if offsets is not None:
        replayed = replayed.where(Replay.record_offset.in_(list(offsets)))
        notes = notes.where(QuarantineNote.record_offset.in_(list(offsets)))
    replays = {
        key_of(row): Replayed(
            row.fate, row.replayed_at, row.replayed_by, Interval(into.from_time, into.to_time) if into else None
        )
        for row, into in ledger.execute(replayed).tuples()
    }
    discards: dict[RecordKey, Note] = {}
    failures: dict[RecordKey, Note] = {}
    for row in ledger.scalars(notes):
        note = Note(row.noted_at, row.noted_by, row.reason, row.detail, row.decoder_version)
        (discards if row.kind == "discarded" else failures)[key_of(row)] = note
    return Decisions(replays, discards, failures)


def key_of(row: Replay | QuarantineNote | DivertedRecord) -> RecordKey:
    """Return the record that a row is about."""
    return RecordKey(row.topic, row.topic_id, row.topic_partition, row.record_offset)


def record_discards(pipeline: str, records: Collection[RecordKey], *, reason: str, by: str) -> None:
    """Record in one transaction that records are discarded, by whom and why. The caller is `deciding`."""
    with session() as ledger:
        for record in sorted(records):
            ledger.add(note_row(pipeline, record, kind="discarded", by=by, reason=reason))


def note_row(
    pipeline: str, record: RecordKey, *, kind: str, by: str, reason: str, detail: str = "", decoder_version: str = ""
) -> QuarantineNote:
    """Return the row of a decision or a finding about a record; its texts are made `storable`."""
    return QuarantineNote(
        pipeline=pipeline,
        topic=record.topic,
        topic_id=record.topic_id,
        topic_partition=record.partition,
        record_offset=record.offset,
        kind=kind,
        noted_by=by,
        reason=storable(reason),
        detail=storable(detail),
        decoder_version=decoder_version,
    )


def storable(text: str) -> str:
    """Return a text as PostgreSQL holds it, with every character but NUL: a detail may quote a value."""
    return text.replace("\0", "\ufffd")
