"""Which code decoded what: the decoder versions of committed micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select

from include.ledger.database import session
from include.ledger.micro_batches import ARCHIVE, of_incarnation
from include.ledger.models import LandingFile, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange


def _overlapping(what: Any, pipeline: str, query: str, each: OffsetRange) -> Select[Any]:
    return (
        select(what)
        .select_from(MicroBatchRange)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == query,
            MicroBatchRange.topic == each.topic_partition.topic,
            of_incarnation(MicroBatchRange, each),
            MicroBatchRange.topic_partition == each.topic_partition.partition,
            MicroBatchRange.until_offset > each.from_offset,
            MicroBatchRange.from_offset < each.until_offset,
        )
    )


def decoded_otherwise(pipeline: str, ranges: Iterable[OffsetRange], version: str) -> list[OffsetRange]:
    """The parts of the ranges that the archive query decoded with other code than this version's, merged.

    A micro-batch without a version was committed before versions were noted: by other code.
    """
    found: list[OffsetRange] = []
    with session() as ledger:
        for each in ranges:
            if not len(each):
                continue
            rows = ledger.scalars(
                _overlapping(MicroBatchRange, pipeline, ARCHIVE, each)
                .where(MicroBatch.decoder_version.is_distinct_from(version))
                .order_by(MicroBatchRange.from_offset)
            )
            for row in rows:
                begin, end = max(row.from_offset, each.from_offset), min(row.until_offset, each.until_offset)
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
                rows = ledger.scalars(_overlapping(MicroBatch.decoder_version, pipeline, ARCHIVE, each).distinct())
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
            ledger.scalar(_overlapping(MicroBatch.id, pipeline, view, each).where(other).limit(1))
            for each in ranges
            if len(each)
        ]
        first, last = func.coalesce(LandingFile.event_time_min, low), func.coalesce(LandingFile.event_time_max, high)
        landed = (
            select(first, last)
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(
                MicroBatch.pipeline == pipeline,
                MicroBatch.query == ARCHIVE,
                LandingFile.outcome == "archived",
                first < high,
                last >= low,
                other,
            )
        )
        spans = [(begin, end) for begin, end in ledger.execute(landed)]
        return OtherCode(any(batch is not None for batch in counted), spans)
