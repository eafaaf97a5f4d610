"""The history of a table, interval by interval: rows, freshness, fates, expectations, late rows, code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Select, func, select, true

from include.ledger.database import session
from include.ledger.intervals.states import RevisionState
from include.ledger.models import (
    Build,
    ExpectationRow,
    IntervalRange,
    IntervalRow,
    QuarantineCount,
    QuarantineTotal,
    Revision,
)


@dataclass(frozen=True)
class IntervalFacts:
    """A built interval; its counts are those of its latest published build, or of its latest build before any is."""

    id: int
    from_time: datetime
    to_time: datetime
    state: str
    build: int
    pending: int | None
    late: int | None
    unexplained: int | None
    columns: Mapping[str, Mapping[str, str]] | None
    """By table, its columns with their types; None if the build did not keep them."""


@dataclass(frozen=True)
class RegisteredFacts:
    """An interval's registered revisions in one table."""

    rows: int
    code_version: str
    first_registered_at: datetime | None
    """When anything of it was first registered: a rerun does not make it fresher."""


@dataclass(frozen=True)
class FateTotals:
    """Offsets of an interval by their fate, over all topic partitions."""

    archived: int
    empty: int
    quarantined: int
    gaps: int
    erased: int


@dataclass(frozen=True)
class ExpectationFacts:
    """What one expectation found in one build."""

    build: int
    expectation: str
    column: str
    words: str
    success: bool
    observed: str
    value: float | None
    low: float | None
    high: float | None
    unexpected_count: int
    checked: int | None


def _begins_in(pipeline: str, since: datetime, until: datetime) -> tuple:
    return (IntervalRow.pipeline == pipeline, IntervalRow.from_time >= since, IntervalRow.from_time < until)


def builds_query(pipeline: str, since: datetime, until: datetime) -> Select:
    """Return the query over the builds that count: per interval the last one that was published, else the last."""
    return (
        select(
            IntervalRow.id,
            IntervalRow.from_time,
            IntervalRow.to_time,
            IntervalRow.state,
            Build.id.label("build"),
            Build.pending,
            Build.late,
            Build.unexplained,
            Build.columns,
        )
        .select_from(IntervalRow)
        .join(Build, Build.interval_id == IntervalRow.id)
        .where(*_begins_in(pipeline, since, until))
        .distinct(IntervalRow.from_time)
        .order_by(IntervalRow.from_time, Build.published_at.is_(None), Build.id.desc())
    )


def built_intervals(pipeline: str, since: datetime, until: datetime) -> list[IntervalFacts]:
    """Return the pipeline's intervals of that time that were ever built, in order."""
    with session() as ledger:
        return [IntervalFacts(*row) for row in ledger.execute(builds_query(pipeline, since, until))]


def registered_query(table: str, pipeline: str, since: datetime, until: datetime) -> Select:
    """Return the query over a table's revisions, by interval."""
    now_registered = Revision.state == RevisionState.REGISTERED
    return (
        select(
            Revision.interval_id,
            func.coalesce(func.sum(Revision.rows).filter(now_registered), 0),
            func.max(Revision.code_version).filter(now_registered),
            func.min(Revision.registered_at),
        )
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .where(*_begins_in(pipeline, since, until), Revision.table_name == table)
        .group_by(Revision.interval_id)
    )


def registered_rows(table: str, pipeline: str, since: datetime, until: datetime) -> dict[int, RegisteredFacts]:
    """Return the sums over a table's registered revisions, by interval."""
    with session() as ledger:
        rows = ledger.execute(registered_query(table, pipeline, since, until)).all()
    return {
        interval: RegisteredFacts(int(count), version, first)
        for interval, count, version, first in rows
        if version is not None
    }


def fates_query(pipeline: str, since: datetime, until: datetime) -> Select:
    """Return the query over the fates of intervals, summed over their topic partitions."""
    counts = [getattr(IntervalRange, each.name) for each in fields(FateTotals)]
    return (
        select(IntervalRange.interval_id, *(func.coalesce(func.sum(count), 0) for count in counts))
        .join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
        .where(*_begins_in(pipeline, since, until))
        .group_by(IntervalRange.interval_id)
    )


def fates(pipeline: str, since: datetime, until: datetime) -> dict[int, FateTotals]:
    """Return the fates of the pipeline's offsets, by interval."""
    with session() as ledger:
        return {row[0]: FateTotals(*map(int, row[1:])) for row in ledger.execute(fates_query(pipeline, since, until))}


def expectations_query(table: str, builds: Sequence[int]) -> Select:
    """Return the query over what a table's expectations found in builds."""
    return (
        select(
            ExpectationRow.build_id,
            ExpectationRow.expectation,
            ExpectationRow.column_name,
            ExpectationRow.words,
            ExpectationRow.success,
            ExpectationRow.observed,
            ExpectationRow.value,
            ExpectationRow.low,
            ExpectationRow.high,
            ExpectationRow.unexpected_count,
            ExpectationRow.checked,
        )
        .where(ExpectationRow.table_name == table, ExpectationRow.build_id.in_(list(builds)))
        .order_by(ExpectationRow.number, ExpectationRow.build_id)
    )


def expectations(table: str, builds: Sequence[int]) -> list[ExpectationFacts]:
    """Return what a table's expectations found in builds, in the order of the suite."""
    if not builds:
        return []
    with session() as ledger:
        return [ExpectationFacts(*row) for row in ledger.execute(expectations_query(table, builds))]


@dataclass(frozen=True)
class Reasons:
    """Records that came into quarantine in an hour with one reason."""

    hour: datetime
    reason: str
    records: int
    last_batch: int
    """The last micro-batch that brought one of them."""


def quarantine_by_hour(pipeline: str, since: datetime, until: datetime) -> list[Reasons]:
    """Return how many records came into quarantine, by hour and reason, in the order of time."""
    wanted = (
        select(QuarantineCount.hour, QuarantineCount.reason, QuarantineCount.records, QuarantineCount.last_batch)
        .where(QuarantineCount.pipeline == pipeline, QuarantineCount.hour >= since, QuarantineCount.hour < until)
        .order_by(QuarantineCount.hour, QuarantineCount.reason)
    )
    with session() as ledger:
        return [Reasons(*row) for row in ledger.execute(wanted)]


def quarantine_reasons(pipeline: str) -> list[Reasons]:
    """Return how many records ever came into quarantine with each reason, and the last hour and micro-batch of each."""
    last = (
        select(QuarantineCount.hour, QuarantineCount.last_batch)
        .where(QuarantineCount.pipeline == QuarantineTotal.pipeline, QuarantineCount.reason == QuarantineTotal.reason)
        .order_by(QuarantineCount.hour.desc())
        .limit(1)
        .lateral()
    )
    wanted = (
        select(last.c.hour, QuarantineTotal.reason, QuarantineTotal.records, last.c.last_batch)
        .join(last, true())
        .where(QuarantineTotal.pipeline == pipeline)
    )
    with session() as ledger:
        return [Reasons(hour, reason, int(records), batch) for hour, reason, records, batch in ledger.execute(wanted)]
