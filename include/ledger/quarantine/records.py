"""Quarantined records: how each is identified for ever, and in which files they lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from include.errors import AnotherWriter
from include.ledger.archive.positions import overlapping
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange
from include.offsets import Coordinates, Fate, OffsetRange, TopicPartition

_AT_ONCE = 10_000
"""Origins that are in memory at once, unless a file alone has more: about a kilobyte each."""


@dataclass(frozen=True, order=True)
class RecordKey:
    """Identity of a record for ever: a recreated topic's offsets mean other records."""

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

    micro_batch: int
    from_offset: int
    until_offset: int
    topic_id: str
    """Kafka's id of the topic when they were landed."""
    decoder_version: str | None


@dataclass(frozen=True)
class QuarantineFile:
    """A quarantine file with facts that its records do not carry. It may hold many micro-batches."""

    path: str
    origins: Mapping[TopicPartition, Sequence[Origin]]
    """The micro-batches that were asked for by topic partition, in the order of their offsets."""

    def origin(self, topic_partition: TopicPartition, offset: int) -> Origin:
        """Return where the record at that offset comes from; without a topic id for one of another micro-batch."""
        origins = self.origins.get(topic_partition, ())
        at = bisect_right(origins, offset, key=lambda origin: origin.until_offset)
        if at < len(origins) and origins[at].from_offset <= offset:
            return origins[at]
        return Origin(0, offset, offset + 1, "", None)


def files(
    pipeline: str, within: OffsetRange | None = None, batches: Collection[int] | None = None
) -> Iterator[QuarantineFile]:
    """Return the quarantine files of committed micro-batches, oldest first: they are listed now.

    `within`: only those that may hold its offsets, of its incarnation of the topic; `batches`: only those of these
    micro-batches. Where each file comes from is read in portions, for years of it do not fit into memory; raises
    `replaced` when a file was replaced until then.
    """
    conditions = [
        MicroBatch.pipeline == pipeline,
        LandingFileRow.fate == Fate.QUARANTINED,
        MicroBatchRange.from_offset < MicroBatchRange.until_offset,
    ]
    if within is not None:
        conditions.append(overlapping(within))
    if batches is not None:
        conditions.append(LandingFileRow.micro_batch_id.in_(list(batches)))
    listed = _joined(LandingFileRow.path, func.count()).where(*conditions)
    with session() as ledger:
        found = ledger.execute(listed.group_by(LandingFileRow.path).order_by(func.min(LandingFileRow.id))).tuples()
        portions = _portions(found)
    return (file for paths in portions for file in _with_origins(pipeline, paths, conditions))


def _joined(*columns: Any) -> Select:
    of_batch = select(*columns).join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
    return of_batch.join(MicroBatchRange, MicroBatchRange.micro_batch_id == MicroBatch.id)


def _portions(counted: Iterable[tuple[str, int]]) -> list[list[str]]:
    """Return the paths in portions of `_AT_ONCE` origins; a file alone may have more."""
    portions: list[list[str]] = []
    size = _AT_ONCE
    for path, origins in counted:
        if size + origins > _AT_ONCE:
            portions.append([])
            size = 0
        portions[-1].append(path)
        size += origins
    return portions


def _with_origins(
    pipeline: str, paths: Sequence[str], conditions: Sequence[ColumnElement[bool]]
) -> Iterator[QuarantineFile]:
    """Yield the files with the micro-batches that meet the conditions. Raises `replaced`."""
    wanted = _joined(
        LandingFileRow.path,
        MicroBatch.id,
        MicroBatch.decoder_version,
        MicroBatchRange.topic,
        MicroBatchRange.topic_partition,
        MicroBatchRange.from_offset,
        MicroBatchRange.until_offset,
        MicroBatchRange.topic_id,
    ).where(*conditions, LandingFileRow.path.in_(paths))
    by_path: dict[str, dict[TopicPartition, set[Origin]]] = {path: {} for path in paths}
    with session() as ledger:
        for path, batch, version, topic, partition, begin, until, topic_id in ledger.execute(wanted):
            origins = by_path[path].setdefault(TopicPartition(topic, partition), set())
            origins.add(Origin(batch, begin, until, topic_id, version))
    for path, of_file in by_path.items():
        if not of_file:
            raise replaced(pipeline, path)
        yield QuarantineFile(path, {tp: sorted(each, key=lambda o: o.until_offset) for tp, each in of_file.items()})


def replaced(pipeline: str, path: str) -> AnotherWriter:
    """Return the error of a file that housekeeping or an erasure has replaced since it was listed."""
    return AnotherWriter(
        f"the quarantine's file {path} was merged, or written anew, while it was read",
        remedy="repeat this",
        pipeline=pipeline,
    )


def latest_batches_query(pipeline: str, until: int | None, most: int) -> Select:
    """Return the query over the last micro-batches with a quarantine file, up to one of them; latest first."""
    wanted = (
        select(LandingFileRow.micro_batch_id)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(MicroBatch.pipeline == pipeline, LandingFileRow.fate == Fate.QUARANTINED)
        .order_by(LandingFileRow.micro_batch_id.desc())
        .limit(most)
    )
    return wanted if until is None else wanted.where(LandingFileRow.micro_batch_id <= until)


def latest_batches(pipeline: str, until: int | None, most: int) -> list[int]:
    """Return the last micro-batches with a quarantine file, up to one of them; latest first."""
    with session() as ledger:
        return list(ledger.scalars(latest_batches_query(pipeline, until, most)))
