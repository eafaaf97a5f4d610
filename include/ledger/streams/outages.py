"""Outages: things that archive rows find down, until they find them up; one notification at the beginning and the end.

What a micro-batch finds is noted in the transaction that commits it, so a replay of it finds nothing a second time. The
notification follows: its sender marks it as sent, and a crash between the two sends it again, with the same id.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from include.ledger.archive.positions import ARCHIVE, of_query, overlapping
from include.ledger.database import session
from include.ledger.models import Erasure, MicroBatch, MicroBatchRange, OutageRow
from include.offsets import OffsetRange, intersection, merged

MOST = 1000
"""Outages that are notified about in one transaction."""

_AT_ONCE = 5000
"""Keys that one statement looks for."""

_TELLING = 7411043
"""First key of the notifier's lock; the second one is the pipeline's."""


@dataclass(frozen=True, order=True)
class Place:
    """An archive row's coordinates and its position inside the message."""

    topic: str
    partition: int
    offset: int
    element: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset} row {self.element}"


@dataclass(frozen=True)
class StateChange:
    """An archive row that finds a thing down, or up again."""

    report: str
    """Title of the report that watches it."""
    key: str
    """JSON object of the report's key columns."""
    is_up: bool
    place: Place
    at: datetime
    """The record's timestamp."""
    row: Mapping[str, Any]
    """The report's columns."""


@dataclass(frozen=True)
class Untold:
    """A change that the operators have not been notified of."""

    outage: str
    """Where it began, by Kafka's id of the topic: the same in every ledger that notes it."""
    change: StateChange


@dataclass(frozen=True)
class Outage:
    """An outage as it was noted; without an end while it lasts."""

    key: str
    micro_batch: int
    """The micro-batch that found it down."""
    began: Place
    began_topic_id: str
    ended: Place | None
    ended_topic_id: str | None


@dataclass(frozen=True)
class Watched:
    """Offset ranges in whose rows somebody looked for outages."""

    ranges: Sequence[OffsetRange]
    first_batch: int
    """The first of the micro-batches that landed them."""
    last_batch: int


def record(
    ledger: Session, pipeline: str, micro_batch: int, changes: Sequence[StateChange], topic_ids: Mapping[str, str]
) -> None:
    """Note what a micro-batch found, in the order of its rows, in the transaction that commits it.

    The outages that it ends are read together: thousands may end at once, and nobody can renew the lease meanwhile.
    """
    lasting = _lasting(ledger, pipeline, changes)
    later = []
    for each in changes:
        if each.is_up and (row := lasting.pop((each.report, each.key), None)):
            _end_row(row, micro_batch, each, topic_ids)
        else:
            later.append(each)
    # Before the next outages of the same things are written: one is open at a time.
    ledger.flush()
    last: dict[tuple[str, str], OutageRow] = {}
    for each in later:
        if each.is_up:
            _end_row(last.pop((each.report, each.key)), micro_batch, each, topic_ids)
        else:
            last[each.report, each.key] = _begin_row(pipeline, micro_batch, each, topic_ids)
            ledger.add(last[each.report, each.key])
    ledger.flush()


def _lasting(ledger: Session, pipeline: str, changes: Iterable[StateChange]) -> dict[tuple[str, str], OutageRow]:
    """Return the open outages that the changes end, by report and key: those of things whose first change is up."""
    first: dict[tuple[str, str], bool] = {}
    for each in changes:
        first.setdefault((each.report, each.key), each.is_up)
    ended: dict[str, list[str]] = defaultdict(list)
    for (report, key), is_up in first.items():
        if is_up:
            ended[report].append(key)
    wanted = (
        select(OutageRow).where(*_open(pipeline, report, *keys[at : at + _AT_ONCE]))
        for report, keys in ended.items()
        for at in range(0, len(keys), _AT_ONCE)
    )
    return {(row.report, row.key): row for each in wanted for row in ledger.scalars(each)}


def _begin_row(pipeline: str, micro_batch: int, change: StateChange, topic_ids: Mapping[str, str]) -> OutageRow:
    place = change.place
    return OutageRow(
        pipeline=pipeline,
        report=change.report,
        key=change.key,
        micro_batch=micro_batch,
        topic=place.topic,
        topic_id=topic_ids[place.topic],
        topic_partition=place.partition,
        record_offset=place.offset,
        element=place.element,
        began_at=change.at,
        row=dict(change.row),
    )


def _end_row(row: OutageRow, micro_batch: int, change: StateChange, topic_ids: Mapping[str, str]) -> None:
    place = change.place
    row.end_micro_batch = micro_batch
    row.end_topic, row.end_topic_id = place.topic, topic_ids[place.topic]
    row.end_partition, row.end_offset, row.end_element = place.partition, place.offset, place.element
    row.ended_at, row.end_row = change.at, dict(change.row)


def _open(pipeline: str, report: str, *keys: str) -> tuple[ColumnElement[bool], ...]:
    named = (OutageRow.key.in_(keys),) if keys else ()
    return OutageRow.pipeline == pipeline, OutageRow.report == report, OutageRow.end_offset.is_(None), *named


def open_keys(pipeline: str, report: str) -> frozenset[str]:
    """Return the keys of the things that are down."""
    with session() as ledger:
        return frozenset(ledger.scalars(select(OutageRow.key).where(*_open(pipeline, report))))


def open_of_others(pipeline: str, reports: Collection[str]) -> dict[str, int]:
    """Return the other reports with things that are down, by title, each with the number of these."""
    wanted = select(OutageRow.report, func.count()).where(
        OutageRow.pipeline == pipeline, OutageRow.end_offset.is_(None), OutageRow.report.not_in(reports)
    )
    with session() as ledger:
        return dict(ledger.execute(wanted.group_by(OutageRow.report).order_by(OutageRow.report)).tuples().all())


@contextmanager
def sending_new(pipeline: str) -> Iterator[list[Untold]]:
    """Yield the changes not sent yet, of at most MOST outages, and mark them as sent when the block succeeds.

    One process at a time sends a pipeline's changes, and another one gets none meanwhile. The rows are not locked:
    a slow broker must not hold up the micro-batch that finds the end of an outage.
    """
    is_untold = or_(
        OutageRow.told_at.is_(None), and_(OutageRow.end_offset.is_not(None), OutageRow.end_told_at.is_(None))
    )
    wanted = select(OutageRow).where(OutageRow.pipeline == pipeline, is_untold).order_by(OutageRow.id).limit(MOST)
    with session() as ledger:
        is_alone = ledger.scalar(select(func.pg_try_advisory_xact_lock(_TELLING, func.hashtext(pipeline))))
        rows = ledger.scalars(wanted).all() if is_alone else []
        yield [untold for row in rows for untold in _untold(row)]
        for row in rows:
            row.told_at = row.told_at or func.now()
            row.end_told_at = row.end_told_at or (func.now() if row.end_offset is not None else None)


def _untold(row: OutageRow) -> Iterator[Untold]:
    outage = f"{row.topic_id}-{row.topic_partition}-{row.record_offset}-{row.element}"
    if row.told_at is None:
        yield Untold(outage, StateChange(row.report, row.key, False, _begin(row), row.began_at, row.row))
    ended = _end(row)
    if ended is not None and row.end_told_at is None:
        assert row.ended_at is not None
        yield Untold(outage, StateChange(row.report, row.key, True, ended, row.ended_at, row.end_row or {}))


def _begin(row: OutageRow) -> Place:
    return Place(row.topic, row.topic_partition, row.record_offset, row.element)


def _end(row: OutageRow) -> Place | None:
    if row.end_topic is None or row.end_partition is None or row.end_offset is None or row.end_element is None:
        return None
    return Place(row.end_topic, row.end_partition, row.end_offset, row.end_element)


def watched_in(pipeline: str, report: str, watched_as: Iterable[str], ranges: Sequence[OffsetRange]) -> Watched:
    """Return the parts of the ranges in whose rows the archive query looked for the report's outages.

    `watched_as` is what `Listing.watched_as` gives. Earlier code noted the title alone: it is taken for the same watch.
    """
    same_watch = or_(*(MicroBatch.watched.contains([each]) for each in (report, *watched_as)))
    watched: list[OffsetRange] = []
    batches: list[int] = []
    with session() as ledger:
        for each in ranges:
            tp = each.topic_partition
            wanted = (
                select(MicroBatch.id, MicroBatchRange.from_offset, MicroBatchRange.until_offset)
                .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
                .where(
                    of_query(pipeline, ARCHIVE),
                    same_watch,
                    overlapping(each),
                )
            )
            for batch, low, high in ledger.execute(wanted).tuples():
                if (common := intersection(OffsetRange(tp, low, high), each)) is not None:
                    watched.append(common)
                    batches.append(batch)
    return Watched(merged(watched), min(batches, default=0), max(batches, default=0))


def outages_within(pipeline: str, report: str, watched: Watched) -> list[Outage]:
    """Return the outages that began before or in the micro-batches of the ranges, and did not end before these."""
    wanted = select(OutageRow).where(
        OutageRow.pipeline == pipeline,
        OutageRow.report == report,
        OutageRow.micro_batch <= watched.last_batch,
        or_(OutageRow.end_micro_batch.is_(None), OutageRow.end_micro_batch >= watched.first_batch),
    )
    with session() as ledger:
        rows = ledger.scalars(wanted.order_by(OutageRow.id)).all()
        return [Outage(o.key, o.micro_batch, _begin(o), o.topic_id, _end(o), o.end_topic_id) for o in rows]


def without_keys(ledger: Session, pipeline: str, deleted: Iterable[OutageRow], salt: str) -> list[list[Any]]:
    """Return what an erasure keeps of the outages that it deletes: between which micro-batches rows may give them.

    One that lasts is given until the last that is committed: later ones find nothing that lasts.
    """
    newest = select(func.coalesce(func.max(MicroBatch.id), 0)).where(of_query(pipeline, ARCHIVE))
    last = ledger.scalars(newest).one()
    return [[o.report, _hash_of(o.key, salt), o.micro_batch, o.end_micro_batch or last] for o in deleted]


def deleted_of(pipeline: str, report: str, keys: Iterable[str], watched: Watched) -> set[str]:
    """Return those of the things with an outage that an erasure deleted, and that rows of the ranges may still give."""
    wanted, found = frozenset(keys), set[str]()
    with session() as ledger:
        noted = select(Erasure.salt, Erasure.outages).where(Erasure.pipeline == pipeline)
        for salt, deleted in ledger.execute(noted).tuples() if wanted else ():
            hashes = {
                thing
                for title, thing, first, last in deleted
                if title == report and first <= watched.last_batch and last >= watched.first_batch
            }
            found |= {key for key in wanted if _hash_of(key, salt) in hashes} if hashes else set()
    return found


def _hash_of(key: str, salt: str) -> str:
    """Return the salted SHA-256 of a thing by the values of its key, whatever its columns are called."""
    values = json.dumps(sorted(json.dumps(value) for value in json.loads(key).values()))
    return hashlib.sha256(bytes.fromhex(salt) + values.encode()).hexdigest()
