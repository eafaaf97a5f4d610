"""The one transaction that begins an erasure: from its commit on, nobody reads the records any more.

It sets the records' fate, removes what the ledger itself repeats of them, and opens the stream's next generation.
The rest of an erasure needs no key, only coordinates (`include/ledger/erasures/unfinished.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.errors import UsageError
from include.ledger.archive.positions import ranges_with
from include.ledger.database import session
from include.ledger.erasures.coordinates import lock_erasing
from include.ledger.erasures.scrub import forget
from include.ledger.erasures.to_forget import KeysToForget
from include.ledger.intervals.pins import lock_pinning
from include.ledger.intervals.revisions import move
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Build, DivertedRecord, ErasedRecord, Erasure, QuarantineNote, Replay, Revision
from include.ledger.quarantine import RecordKey
from include.ledger.streams import outages, writers
from include.ledger.streams.generations import open_in
from include.offsets import Fate

_AT_ONCE = 5_000
"""Rows in one statement."""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    pipeline: str
    columns: Sequence[str]
    reason: str
    by: str
    salt: str
    key_hashes: Sequence[str]
    has_views: bool
    formerly: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names that renamed columns had before, newest first, by the present one."""
    not_archived: int | None = None
    """How many offsets the archive was behind at the end of the search; None when Kafka did not answer."""


@dataclass(frozen=True)
class Found:
    """The records that hold a key."""

    landed: Collection[RecordKey]
    """Those with rows in landing files."""
    registered: Collection[RecordKey]
    """Those with rows in revisions only: their landing files were removed, or newer code made these rows."""
    quarantined: Collection[RecordKey]
    rows: int
    """Rows of the archive table."""


_COUNTED = """
    UPDATE {table} AS counted SET
        archived = counted.archived - LEAST(counted.archived, part.archived),
        empty = counted.empty - LEAST(counted.empty, part.empty),
        quarantined = counted.quarantined - LEAST(counted.quarantined, part.quarantined),
        erased = counted.erased + part.archived + part.empty + part.quarantined
    FROM (
        SELECT r.{key}, r.topic, r.topic_partition,
            count(*) FILTER (WHERE e.fate = 'archived') AS archived,
            count(*) FILTER (WHERE e.fate = 'empty') AS empty,
            count(*) FILTER (WHERE e.fate = 'quarantined') AS quarantined
        FROM erased_records e
        CROSS JOIN LATERAL {ranges} AS r
        CROSS JOIN LATERAL (
            SELECT FROM {owner} o WHERE o.id = r.{key} AND o.pipeline = e.pipeline {condition} OFFSET 0
        ) AS own
        WHERE e.erasure_id = :erasure
        GROUP BY r.{key}, r.topic, r.topic_partition
    ) AS part
    WHERE counted.{key} = part.{key} AND counted.topic = part.topic
        AND counted.topic_partition = part.topic_partition {noted}
"""

_INTERVALS = f"""
    SELECT DISTINCT r.interval_id
    FROM erased_records e
    CROSS JOIN LATERAL {ranges_with("interval_ranges", "e")} AS r
    CROSS JOIN LATERAL (
        SELECT FROM intervals o WHERE o.id = r.interval_id AND o.pipeline = e.pipeline OFFSET 0
    ) AS own
    WHERE e.erasure_id = :erasure
    UNION
    SELECT p.interval_id
    FROM replays p
    JOIN erased_records e ON e.pipeline = p.pipeline AND e.topic = p.topic AND e.topic_id = p.topic_id
        AND e.topic_partition = p.topic_partition AND e.record_offset = p.record_offset
    WHERE e.erasure_id = :erasure AND p.interval_id IS NOT NULL
"""

_REMOVED = f"""
    UPDATE erased_records AS e SET fate = 'archived'
    WHERE e.erasure_id = :erasure AND e.fate = 'empty' AND EXISTS (
        SELECT
        FROM {ranges_with("micro_batch_ranges", "e")} AS r
        CROSS JOIN LATERAL (
            SELECT
            FROM micro_batches b JOIN landing_files f ON f.micro_batch_id = b.id
            WHERE b.id = r.micro_batch_id AND b.query = 'archive' AND b.pipeline = e.pipeline
                AND f.fate = 'archived' AND f.removed_at IS NOT NULL
            OFFSET 0
        ) AS removed
        OFFSET 0
    )
"""

_REPLAYED = """
    UPDATE erased_records AS e SET fate = 'quarantined'
    FROM replays p
    WHERE e.erasure_id = :erasure AND p.pipeline = e.pipeline AND p.topic = e.topic AND p.topic_id = e.topic_id
        AND p.topic_partition = e.topic_partition AND p.record_offset = e.record_offset
"""


def begin(lease: writers.Lease, request: Request, found: Found, names: KeysToForget) -> int:
    """Begin an erasure and return its number.

    Raises AnotherWriter when the lease is lost, UsageError when another erasure of the pipeline is unfinished.
    """
    with session() as ledger:
        # A person may have many years of records.
        ledger.execute(text("SET LOCAL statement_timeout = 0"))
        writers.check(ledger, lease)
        lock_erasing(ledger, request.pipeline)
        _check_alone(ledger, request.pipeline)
        row = Erasure(
            pipeline=request.pipeline,
            columns=list(request.columns),
            reason=request.reason,
            begun_by=request.by,
            salt=request.salt,
            key_hashes=list(request.key_hashes),
            counts={},
            intervals=[],
            last_build=ledger.scalar(select(func.coalesce(func.max(Build.id), 0))) or 0,
        )
        ledger.add(row)
        ledger.flush()
        _note_records(ledger, row.id, request.pipeline, found)
        # Only now, for it is held to the end: an interval that is pinned is among those below, or its builds know this
        # erasure.
        lock_pinning(ledger, request.pipeline)
        _count(ledger, row.id)
        row.intervals = sorted(ledger.scalars(text(_INTERVALS), {"erasure": row.id}))
        _drop_decisions(ledger, row.id)
        spellings = [(each, *request.formerly.get(each, ())) for each in request.columns]
        forgotten = forget(ledger, request.pipeline, row.intervals, names, spellings)
        row.outages = outages.without_keys(ledger, request.pipeline, forgotten.outages, request.salt)
        _discard_builds(ledger, row.intervals)
        records = len({*found.landed, *found.registered, *found.quarantined})
        if request.has_views and records:
            row.generation = open_in(ledger, request.pipeline, request.by, f"erasure {row.id}: {request.reason}")
        row.counts = {
            "keys": len(request.key_hashes),
            "records": records,
            "rows": found.rows,
            "quarantined": len(found.quarantined),
            "intervals": len(row.intervals),
            "ledger_entries": forgotten.rows,
            "expectations": forgotten.in_proofs,
            "not_archived_yet": request.not_archived,
            "reasons": forgotten.reasons_in_proofs,
        }
        return row.id


def _check_alone(ledger: Session, pipeline: str) -> None:
    open_one = ledger.scalar(select(Erasure.id).where(Erasure.pipeline == pipeline, Erasure.ended_at.is_(None)))
    if open_one is not None:
        raise UsageError(
            f"erasure {open_one} is unfinished",
            remedy=f"finish it first: ./tidemark erase {pipeline} --resume",
            pipeline=pipeline,
        )


def _note_records(ledger: Session, erasure: int, pipeline: str, found: Found) -> None:
    fates = {
        **dict.fromkeys(found.registered, Fate.EMPTY),
        **dict.fromkeys(found.landed, Fate.ARCHIVED),
        **dict.fromkeys(found.quarantined, Fate.QUARANTINED),
    }
    rows: list[dict[str, Any]] = [
        {
            "pipeline": pipeline,
            "topic": record.topic,
            "topic_id": record.topic_id,
            "topic_partition": record.partition,
            "record_offset": record.offset,
            "fate": str(fate),
            "erasure_id": erasure,
        }
        for record, fate in sorted(fates.items())
    ]
    for start in range(0, len(rows), _AT_ONCE):
        ledger.execute(insert(ErasedRecord).on_conflict_do_nothing(), rows[start : start + _AT_ONCE])
    # Records with rows in revisions only: archived if their landing files were removed, else newer code made the rows.
    ledger.execute(text(_REMOVED), {"erasure": erasure})
    # Replayed records have landed rows, but their own range counts them as quarantined. Their quarantined bytes may
    # not show the key: a custom decoder reads what a search of bytes cannot.
    ledger.execute(text(_REPLAYED), {"erasure": erasure})


def _count(ledger: Session, erasure: int) -> None:
    """Move the records from the fates that the ledger counted to `erased`, in micro-batches and intervals."""
    batches = {"table": "micro_batch_ranges", "key": "micro_batch_id", "owner": "micro_batches", "noted": ""}
    intervals = {"table": "interval_ranges", "key": "interval_id", "owner": "intervals", "condition": ""}
    batches["condition"], intervals["noted"] = "AND o.query = 'archive'", "AND counted.archived IS NOT NULL"
    for each in (batches, intervals):
        ranges = ranges_with(each["table"], "e")
        ledger.execute(text(_COUNTED.format(ranges=ranges, **each)), {"erasure": erasure})


def _drop_decisions(ledger: Session, erasure: int) -> None:
    """Delete the replays, diversions and decisions of the records."""

    def of_records(model: Any) -> ColumnElement[bool]:
        names = ("pipeline", "topic", "topic_id", "topic_partition", "record_offset")
        same = (getattr(model, name) == getattr(ErasedRecord, name) for name in names)
        return and_(*same, ErasedRecord.erasure_id == erasure)

    for model in (Replay, DivertedRecord):
        ledger.execute(delete(model).where(of_records(model)))
    ledger.execute(
        update(QuarantineNote)
        .where(of_records(QuarantineNote))
        .values(detail="")
        .execution_options(synchronize_session=False)
    )


def _discard_builds(ledger: Session, intervals: Collection[int]) -> None:
    """Discard builds of the intervals that are not registered; they may hold the rows."""
    open_states = (RevisionState.BUILT, RevisionState.VALIDATED, RevisionState.REJECTED)
    wanted = select(Revision).where(Revision.interval_id.in_(list(intervals)), Revision.state.in_(open_states))
    for each in ledger.scalars(wanted.with_for_update()):
        move(each, RevisionState.DISCARDED)
