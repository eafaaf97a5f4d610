"""Decoder versions of committed micro-batches: which code decoded which offsets.

Where landing files were removed, the archive's rows are those that the interval's registered build read, which may have
been of other code than the micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import CTE, ColumnElement, and_, case, func, select
from sqlalchemy.orm import Session, aliased

from include.ledger.archive.holdings import pinned_ranges, registered_around
from include.ledger.archive.landing_files import may_hold_events
from include.ledger.archive.positions import ARCHIVE, of_incarnation, overlaps
from include.ledger.archive.removal import removed_in
from include.ledger.database import session
from include.ledger.intervals.revisions import UNKNOWN, decoders_in
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange
from include.ledger.streams.generations import base_version
from include.offsets import Fate, OffsetRange, TopicPartition, intersection, merged, without


def _ranges_in(each: OffsetRange) -> CTE:
    """Return the ranges of micro-batches that overlap the range: micro_batch_id, from_offset, until_offset.

    Materialized, so that PostgreSQL reads them first. Few batches were decoded by other code; left to itself,
    PostgreSQL looks for those first and reads all batches for it.
    """
    return (
        select(MicroBatchRange.micro_batch_id, MicroBatchRange.from_offset, MicroBatchRange.until_offset)
        .where(
            MicroBatchRange.topic == each.topic_partition.topic,
            of_incarnation(MicroBatchRange, each),
            MicroBatchRange.topic_partition == each.topic_partition.partition,
            overlaps(MicroBatchRange, each),
        )
        .cte("ranges")
        .prefix_with("MATERIALIZED")
    )


def _of_query(pipeline: str, query: str) -> ColumnElement[bool]:
    return and_(MicroBatch.pipeline == pipeline, MicroBatch.query == query)


def decoded_otherwise(pipeline: str, ranges: Iterable[OffsetRange], version: str) -> list[OffsetRange]:
    """Return the parts of the ranges whose archived rows other code than this version's decoded, merged.

    A micro-batch without a version was committed before versions were noted: by other code. Where rows of a registered
    build took the place of removed landing, both have to be this version's.
    """
    ranges, parts = list(ranges), []
    with session() as ledger:
        for each in ranges:
            if not len(each):
                continue
            ranges_in = _ranges_in(each)
            rows = ledger.execute(
                select(ranges_in.c.from_offset, ranges_in.c.until_offset)
                .join(MicroBatch, MicroBatch.id == ranges_in.c.micro_batch_id)
                .where(_of_query(pipeline, ARCHIVE), MicroBatch.decoder_version.is_distinct_from(version))
                .order_by(ranges_in.c.from_offset)
            )
            for low, high in rows:
                begin, end = max(low, each.from_offset), min(high, each.until_offset)
                parts.append(OffsetRange(each.topic_partition, begin, end))
        parts += [each.range for each in _replaced(ledger, pipeline, ranges) if not each.is_of(version)]
    return merged(parts)


@dataclass(frozen=True)
class _Replaced:
    """Offsets whose removed landing a registered build of other code replaced."""

    range: OffsetRange
    builds: Sequence[frozenset[str]]
    """As `decoders_of_content` returns them."""

    def is_of(self, version: str) -> bool:
        return {version} in self.builds


def replaced_by_other_code(pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of the ranges whose archived rows were landed by other code than they have now, merged.

    Their landing was removed, and the interval was run again since, with other code. A record that only one of the two
    gave rows has its fate twice in the archive, or nowhere.
    """
    with session() as ledger:
        return merged(each.range for each in _replaced(ledger, pipeline, ranges))


def _replaced(ledger: Session, pipeline: str, ranges: Iterable[OffsetRange]) -> list[_Replaced]:
    found: list[_Replaced] = []
    for removed in removed_in(ledger, pipeline, ranges):
        for row, held in registered_around(ledger, pipeline, removed):
            builds = decoders_in(ledger, row.interval_id)
            part = intersection(held, removed)
            pinned = pinned_ranges(ledger, [row.interval_id])[row.interval_id]
            if not part or not builds or _landed_by(ledger, pipeline, pinned) in builds:
                continue
            for version, each in _versions_in(ledger, pipeline, part):
                found += [] if {version} in builds else [_Replaced(each, builds)]
    return found


def _landed_by(ledger: Session, pipeline: str, ranges: Iterable[OffsetRange]) -> set[str]:
    versions: set[str] = set()
    for ranges_in in (_ranges_in(each) for each in ranges if len(each)):
        rows = ledger.scalars(
            select(MicroBatch.decoder_version)
            .join(ranges_in, MicroBatch.id == ranges_in.c.micro_batch_id)
            .where(_of_query(pipeline, ARCHIVE))
            .distinct()
        )
        versions.update(version or UNKNOWN for version in rows)
    return versions


def _versions_in(ledger: Session, pipeline: str, each: OffsetRange) -> list[tuple[str, OffsetRange]]:
    """Return the parts of a range by the micro-batches that landed them, each with the version of their code."""
    ranges_in = _ranges_in(each)
    rows = ledger.execute(
        select(MicroBatch.decoder_version, ranges_in.c.from_offset, ranges_in.c.until_offset)
        .join(ranges_in, MicroBatch.id == ranges_in.c.micro_batch_id)
        .where(_of_query(pipeline, ARCHIVE))
    )
    parts = ((v, intersection(each, OffsetRange(each.topic_partition, low, high))) for v, low, high in rows)
    return [(version or UNKNOWN, part) for version, part in parts if part]


def counted_otherwise(query_id: str, version: str) -> bool:
    """Return whether a speed view's query has committed a micro-batch that other code than this version's counted."""
    # An index leads to the least and the greatest: if these two are this version, so is all between them.
    noted = select(func.min(MicroBatch.decoder_version), func.max(MicroBatch.decoder_version))
    with session() as ledger:
        versions = ledger.execute(noted.where(MicroBatch.query_id == query_id)).one()
        return any(each not in (None, version) for each in versions)


def decoders_of(pipeline: str, ranges: Iterable[OffsetRange]) -> list[str]:
    """Return the versions of the code that decoded the archived rows of the ranges; `unknown` where none was noted."""
    versions: set[str] = set()
    ranges = list(ranges)
    with session() as ledger:
        replaced = _replaced(ledger, pipeline, ranges)
        versions.update(version for each in replaced for version in each.builds[-1])
        for each in ranges:
            held = (replace(part.range, topic_id=each.topic_id) for part in replaced)
            versions |= _landed_by(ledger, pipeline, without([each], held))
    return sorted(versions)


@dataclass(frozen=True)
class OtherCode:
    """Where code of another version than the current one contributed to a speed view."""

    everywhere: bool
    """Whether it counted some of the interval's offsets."""
    spans: Sequence[tuple[datetime, datetime]]
    """First and last event times of files that it landed."""

    def touches(self, start: datetime, end: datetime) -> bool:
        """Return whether it contributed to the window."""
        return self.everywhere or any(low < end and high >= start for low, high in self.spans)


def _is_counted_by_other(version: int, code: str) -> ColumnElement[bool]:
    """Return whether code of another version counted a speed view's micro-batch, in the generation of `version`.

    A base whose code was not noted is of the code that counted the first micro-batch after it, if there is one: the
    same start made both.
    """
    first, base = aliased(MicroBatch), MicroBatch.batch_id == base_version(version)
    of_first = (
        select(first.decoder_version)
        .where(first.pipeline == MicroBatch.pipeline, first.query == MicroBatch.query, first.id > MicroBatch.id)
        .order_by(first.id)
        .limit(1)
        .scalar_subquery()
    )
    noted = MicroBatch.decoder_version
    return case((base, func.coalesce(noted, of_first, code)), else_=noted).is_distinct_from(code)


def other_code(
    pipeline: str,
    view: str,
    ranges: Iterable[OffsetRange],
    events: tuple[datetime, datetime],
    *,
    version: int,
    landed_by: str,
    counted_by: str,
) -> OtherCode:
    """Return what other code counted of the ranges and landed of events in that time.

    Other code is any but the decoder version `landed_by` and the view version `counted_by`. Counted is what the speed
    view holds at `version`, its last micro-batch: the base of that generation has replaced what earlier ones counted.
    """
    low, high = events
    ranges = list(ranges)
    with session() as ledger:
        counted = [
            ledger.scalar(
                select(MicroBatch.id)
                .join(ranges_in, MicroBatch.id == ranges_in.c.micro_batch_id)
                .where(
                    _of_query(pipeline, view),
                    MicroBatch.batch_id >= base_version(version),
                    _is_counted_by_other(version, counted_by),
                )
                .limit(1)
            )
            for ranges_in in (_ranges_in(each) for each in ranges if len(each))
        ]
        # The files of that time first, for the same reason as in `_ranges_in`.
        in_time = (
            select(
                LandingFileRow.micro_batch_id,
                LandingFileRow.event_time_min,
                LandingFileRow.event_time_max,
                LandingFileRow.removed_at,
            )
            .where(LandingFileRow.fate == Fate.ARCHIVED, may_hold_events(low, high))
            .cte("in_time")
            .prefix_with("MATERIALIZED")
        )
        landed = (
            select(func.coalesce(in_time.c.event_time_min, low), func.coalesce(in_time.c.event_time_max, high))
            .join(MicroBatch, MicroBatch.id == in_time.c.micro_batch_id)
            .where(_of_query(pipeline, ARCHIVE), MicroBatch.decoder_version.is_distinct_from(landed_by))
        )
        spans = [(begin, end) for begin, end in ledger.execute(landed)]
        removed = select(
            func.coalesce(in_time.c.event_time_min, low),
            func.coalesce(in_time.c.event_time_max, high),
            MicroBatchRange.topic,
            MicroBatchRange.topic_partition,
            MicroBatchRange.from_offset,
            MicroBatchRange.until_offset,
        ).join(MicroBatchRange, MicroBatchRange.micro_batch_id == in_time.c.micro_batch_id)
        removed = removed.join(MicroBatch, MicroBatch.id == in_time.c.micro_batch_id)
        removed = removed.where(
            _of_query(pipeline, ARCHIVE), in_time.c.removed_at.is_not(None), MicroBatch.decoder_version == landed_by
        )
        files = [
            ((begin, end), OffsetRange(TopicPartition(topic, partition), at, until))
            for begin, end, topic, partition, at, until in ledger.execute(removed)
        ]
        theirs = [
            each.range
            for each in _replaced(ledger, pipeline, merged(each for _, each in files))
            if not each.is_of(landed_by)
        ]
        spans += [span for span, each in files if any(intersection(each, other) for other in theirs)]
        own = any(not each.is_of(landed_by) for each in _replaced(ledger, pipeline, ranges))
        return OtherCode(own or any(batch is not None for batch in counted), spans)
