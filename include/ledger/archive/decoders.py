"""Which code decoded what: the decoder versions of committed micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CTE, ColumnElement, and_, func, select

from include.ledger.archive.micro_batches import ARCHIVE, may_hold_events, of_incarnation, overlaps
from include.ledger.database import session
from include.ledger.models import LandingFile, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange


def _ranges_in(each: OffsetRange) -> CTE:
    """Ranges of micro-batches that overlap the range; columns micro_batch_id, from_offset, until_offset.

    Materialized, so that they are found first. Few batches have other code behind them, which makes PostgreSQL
    look for those first otherwise, and read all batches for it.
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
    """The parts of the ranges that the archive query decoded with other code than this version's, merged.

    A micro-batch without a version was committed before versions were noted: by other code.
    """
    found: list[OffsetRange] = []
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
                if found and found[-1].topic_partition == each.topic_partition and found[-1].until_offset >= begin:
                    begin = found.pop().from_offset
                found.append(OffsetRange(each.topic_partition, begin, end))
    return found


def decoders_of(pipeline: str, ranges: Iterable[OffsetRange]) -> list[str]:
    """Versions of the code that landed the ranges; `unknown` where none was noted."""
    found: set[str] = set()
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
                found.update(version or "unknown" for version in rows)
    return sorted(found)


@dataclass(frozen=True)
class OtherCode:
    """Where other code than the current one had a part in what a speed view says."""

    everywhere: bool
    """It counted some of the interval's offsets."""
    spans: Sequence[tuple[datetime, datetime]]
    """First and last event times of files that it landed."""

    def touches(self, start: datetime, end: datetime) -> bool:
        """Whether it had a part in the window."""
        return self.everywhere or any(low < end and high >= start for low, high in self.spans)


def other_code(
    pipeline: str, view: str, ranges: Iterable[OffsetRange], events: tuple[datetime, datetime], version: str
) -> OtherCode:
    """What code of other versions had to do with the ranges, and with events of that time."""
    low, high = events
    other = MicroBatch.decoder_version.is_distinct_from(version)
    with session() as ledger:
        counted = [
            ledger.scalar(
                select(MicroBatch.id)
                .join(ranges_in, MicroBatch.id == ranges_in.c.micro_batch_id)
                .where(_of_query(pipeline, view), other)
                .limit(1)
            )
            for ranges_in in (_ranges_in(each) for each in ranges if len(each))
        ]
        # First the files of that time, for the same reason.
        in_time = (
            select(LandingFile.micro_batch_id, LandingFile.event_time_min, LandingFile.event_time_max)
            .where(LandingFile.outcome == "archived", may_hold_events(low, high))
            .cte("in_time")
            .prefix_with("MATERIALIZED")
        )
        landed = (
            select(func.coalesce(in_time.c.event_time_min, low), func.coalesce(in_time.c.event_time_max, high))
            .join(MicroBatch, MicroBatch.id == in_time.c.micro_batch_id)
            .where(_of_query(pipeline, ARCHIVE), other)
        )
        spans = [(begin, end) for begin, end in ledger.execute(landed)]
        return OtherCode(any(batch is not None for batch in counted), spans)
