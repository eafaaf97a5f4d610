"""Where code of another version than the current one contributed to a speed view: counted it, or landed what it counts.

Cost grows with the intervals between removed landing files, and not with their micro-batches, unless other code built
one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import CTE, ColumnElement, case, exists, func, select
from sqlalchemy.orm import Session, aliased

from include.ledger.archive.decoders import ranges_in, replaced_in
from include.ledger.archive.holdings import pinned_ranges
from include.ledger.archive.landing_files import may_hold_events
from include.ledger.archive.positions import ARCHIVE, of_query, overlap_each_other
from include.ledger.database import session
from include.ledger.intervals.states import IntervalState
from include.ledger.models import Build, IntervalRange, IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange
from include.ledger.streams.generations import base_version
from include.offsets import Fate, OffsetRange, merged


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
                .join(inside, MicroBatch.id == inside.c.micro_batch_id)
                .where(
                    of_query(pipeline, view),
                    MicroBatch.batch_id >= base_version(version),
                    _is_counted_by_other(version, counted_by),
                )
                .limit(1)
            )
            for inside in (ranges_in(each) for each in ranges if len(each))
        ]
        # The files of that time first, for the same reason as in `ranges_in`.
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
            .where(of_query(pipeline, ARCHIVE), MicroBatch.decoder_version.is_distinct_from(landed_by))
        )
        spans = [(begin, end) for begin, end in ledger.execute(landed)]
        # Intervals first: there are few, and hardly ever one. The files of that time may be those of weeks.
        suspects = pinned_ranges(ledger, _of_other_builds(ledger, pipeline, in_time, landed_by))
        theirs = replaced_in(ledger, pipeline, (each for parts in suspects.values() for each in parts))
        for each in merged(each.range for each in theirs if not each.is_of(landed_by)):
            spans += _removed_spans(ledger, pipeline, each, events, landed_by)
        own = any(not each.is_of(landed_by) for each in replaced_in(ledger, pipeline, ranges))
        return OtherCode(own or any(batch is not None for batch in counted), spans)


def _of_other_builds(ledger: Session, pipeline: str, in_time: CTE, landed_by: str) -> Sequence[int]:
    """Return the registered intervals among these landing files that have a published build of other code.

    Only files count that are removed, and that this code landed.
    """
    removed = (
        select(
            MicroBatchRange.topic,
            MicroBatchRange.topic_partition,
            func.min(MicroBatchRange.from_offset).label("from_offset"),
            func.max(MicroBatchRange.until_offset).label("until_offset"),
        )
        .join(in_time, in_time.c.micro_batch_id == MicroBatchRange.micro_batch_id)
        .join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
        .where(of_query(pipeline, ARCHIVE), MicroBatch.decoder_version == landed_by, in_time.c.removed_at.is_not(None))
        .group_by(MicroBatchRange.topic, MicroBatchRange.topic_partition)
        .cte("removed")
        .prefix_with("MATERIALIZED")
    )
    # Builds whose versions were not noted, and of which nobody can tell, are neither.
    is_other = Build.findings["decoder_versions"].not_in([func.jsonb_build_array(), func.jsonb_build_array(landed_by)])
    wanted = (
        select(IntervalRange.interval_id)
        .select_from(IntervalRange)
        .join(removed, overlap_each_other(IntervalRange, removed.c))
        .join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
        .where(IntervalRow.pipeline == pipeline, IntervalRow.state == IntervalState.REGISTERED)
        .where(exists().where(Build.interval_id == IntervalRow.id, Build.published_at.is_not(None), is_other))
        .distinct()
    )
    return ledger.scalars(wanted).all()


def _removed_spans(
    ledger: Session, pipeline: str, each: OffsetRange, events: tuple[datetime, datetime], landed_by: str
) -> list[tuple[datetime, datetime]]:
    """Return first and last event times of the removed files of that time that this code landed of the range."""
    inside, (low, high) = ranges_in(each), events
    rows = ledger.execute(
        select(func.coalesce(LandingFileRow.event_time_min, low), func.coalesce(LandingFileRow.event_time_max, high))
        .join(inside, inside.c.micro_batch_id == LandingFileRow.micro_batch_id)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(of_query(pipeline, ARCHIVE), MicroBatch.decoder_version == landed_by)
        .where(LandingFileRow.fate == Fate.ARCHIVED, LandingFileRow.removed_at.is_not(None))
        .where(may_hold_events(low, high))
        .distinct()
    )
    return [(begin, end) for begin, end in rows]
