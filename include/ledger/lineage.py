"""Lineage of a table partition: its revisions, the attempts that built them, the interval and its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.intervals.revisions import BuiltRevision, as_built
from include.ledger.models import Attempt, Build, IntervalRange, IntervalRow, Revision
from include.times import Interval


@dataclass(frozen=True)
class Run:
    """The attempt that built a revision."""

    attempt: int
    run_by: str
    source: str
    started_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    findings: Mapping[str, Any]
    """What the build of the revision found, in the verdict's form."""


@dataclass(frozen=True)
class History:
    """A revision that a table partition has or had."""

    built: BuiltRevision
    state: str
    code_version: str
    built_at: datetime
    registered_at: datetime | None
    retired_at: datetime | None
    run: Run


@dataclass(frozen=True)
class RangeFates:
    """The offsets of one topic partition of an interval; the counts are None until they are known."""

    topic: str
    topic_id: str
    partition: int
    from_offset: int
    until_offset: int
    archived: int | None
    empty: int | None
    quarantined: int | None
    gaps: int | None
    erased: int = 0


@dataclass(frozen=True)
class IntervalHistory:
    """The interval that a registered revision belongs to."""

    interval: Interval
    state: str
    pinned_by: str
    pinned_at: datetime
    ranges: tuple[RangeFates, ...]
    report: str
    """Location of its last report; empty before the first."""


def registered_partitions(table: str) -> list[str]:
    """Return the registered partitions of a table, in order."""
    wanted = select(Revision.table_partition).where(Revision.table_name == table, Revision.state == "registered")
    with session() as ledger:
        return list(ledger.scalars(wanted.order_by(Revision.table_partition)))


def registered_outside(lake: str) -> list[str]:
    """Return the locations of registered revisions that do not lie below a lake's URI, in order."""
    wanted = select(Revision.location).where(Revision.state == "registered")
    wanted = wanted.where(~Revision.location.startswith(f"{lake}/", autoescape=True))
    with session() as ledger:
        return list(ledger.scalars(wanted.order_by(Revision.location)))


def revisions_of_partition(table: str, partition: str) -> list[History]:
    """Return all revisions that a table partition ever had, newest first."""
    wanted = (
        select(Revision, Attempt)
        .join(Attempt, Attempt.id == Revision.attempt_id)
        .where(Revision.table_name == table, Revision.table_partition == partition)
        .order_by(Revision.built_at.desc())
    )
    with session() as ledger:
        return [_history(ledger, revision, attempt) for revision, attempt in ledger.execute(wanted).tuples()]


def _history(ledger: Session, revision: Revision, attempt: Attempt) -> History:
    build = ledger.get(Build, revision.build_id) if revision.build_id is not None else None
    run = Run(
        attempt.id,
        attempt.run_by,
        attempt.source,
        attempt.started_at,
        attempt.ended_at,
        attempt.exit_code,
        build.findings if build else attempt.verdict or {},
    )
    return History(
        as_built(revision),
        revision.state,
        revision.code_version,
        revision.built_at,
        revision.registered_at,
        revision.retired_at,
        run,
    )


def interval_of_attempt(attempt: int) -> IntervalHistory:
    """Return the interval of an attempt with the fate of every offset."""
    with session() as ledger:
        row = ledger.get_one(IntervalRow, ledger.get_one(Attempt, attempt).interval_id)
        ranges = ledger.scalars(
            select(IntervalRange)
            .where(IntervalRange.interval_id == row.id)
            .order_by(IntervalRange.topic, IntervalRange.topic_partition)
        )
        return IntervalHistory(
            Interval(row.from_time, row.to_time),
            row.state,
            row.pinned_by,
            row.pinned_at,
            tuple(fates_of(each) for each in ranges),
            (row.verdict or {}).get("report", ""),
        )


def fates_of(row: IntervalRange) -> RangeFates:
    """Return the range of a ledger row with its fates."""
    return RangeFates(
        row.topic,
        row.topic_id,
        row.topic_partition,
        row.from_offset,
        row.until_offset,
        row.archived,
        row.empty,
        row.quarantined,
        row.gaps,
        row.erased,
    )


def verdict_of_run(run_by: str) -> dict[str, Any]:
    """Return the verdict of the interval that `run_by` ran last, e.g. `airflow <run id>`; empty without a run."""
    wanted = (
        select(IntervalRow.verdict)
        .join(Attempt, Attempt.interval_id == IntervalRow.id)
        .where(Attempt.run_by == run_by)
        .order_by(Attempt.id.desc())
        .limit(1)
    )
    with session() as ledger:
        return ledger.scalar(wanted) or {}
