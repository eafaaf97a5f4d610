"""Decoder versions of committed micro-batches: which code decoded which offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CTE, ColumnElement, and_, case, func, select
from sqlalchemy.orm import aliased

from include.ledger.archive.landing_files import may_hold_events
from include.ledger.archive.positions import ARCHIVE, of_incarnation, overlaps
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange
from include.ledger.streams.generations import base_version
from include.offsets import Fate, OffsetRange


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
    """Return the parts of the ranges that the archive query decoded with other code than this version's, merged.

    A micro-batch without a version was committed before versions were noted: by other code.
    """
    parts: list[OffsetRange] = []
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
                if parts and parts[-1].topic_partition == each.topic_partition and parts[-1].until_offset >= begin:
                    begin = parts.pop().from_offset
                parts.append(OffsetRange(each.topic_partition, begin, end))
    return parts


def counted_otherwise(query_id: str, version: str) -> bool:
    """Return whether a speed view's query has committed a micro-batch that other code than this version's counted."""
    # An index leads to the least and the greatest: if these two are this version, so is all between them.
    noted = select(func.min(MicroBatch.decoder_version), func.max(MicroBatch.decoder_version))
    with session() as ledger:
        versions = ledger.execute(noted.where(MicroBatch.query_id == query_id)).one()
        return any(each not in (None, version) for each in versions)


def decoders_of(pipeline: str, ranges: Iterable[OffsetRange]) -> list[str]:
    """Return the versions of the code that landed the ranges; `unknown` where none was noted."""
    versions: set[str] = set()
    with session() as ledger:
        for each in ranges:
            if len(each):
                ranges_in = _ranges_in(each)
                rows = ledger.scalars(
                    select(MicroBatch.decoder_version)
                    .join(ranges_in, MicroBatch.id == ranges_in.c.micro_batch_id)
                    .where(_of_query(pipeline, ARCHIVE))
                    .distinct()
                )
                versions.update(version or "unknown" for version in rows)
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
            select(LandingFileRow.micro_batch_id, LandingFileRow.event_time_min, LandingFileRow.event_time_max)
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
        return OtherCode(any(batch is not None for batch in counted), spans)
