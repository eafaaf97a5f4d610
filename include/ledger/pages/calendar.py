"""The calendar of intervals: what became of each, for each table, over a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, case, func, select, true
from sqlalchemy.orm import Session, aliased

from include.ledger.database import session
from include.ledger.intervals.attempts import REBUILD
from include.ledger.intervals.states import IntervalState, RevisionState
from include.ledger.inventory import lost_attempts
from include.ledger.models import Approval, Attempt, Build, DeclaredTables, IntervalRow, Revision
from include.ledger.validation.approvals import still_counts

_EVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

# Few intervals have any: those are looked at, not each one that was ever registered.
_FAILED_ONCE = IntervalRow.id.in_(
    select(Attempt.interval_id).where(Attempt.run_by != REBUILD, (Attempt.exit_code != 0) | Attempt.ended_at.is_(None))
)


@dataclass(frozen=True)
class Delivered:
    """An interval's registered revisions in one table."""

    rows: int
    late_partitions: int
    """Table partitions of an earlier date than the interval's."""


@dataclass(frozen=True)
class KnownInterval:
    """A pinned interval with its latest attempt and its latest build; None where there is none yet."""

    pipeline: str
    from_time: datetime
    to_time: datetime
    state: str
    attempt: int | None
    is_under_way: bool
    has_no_verdict: bool
    """Whether its latest attempt ended without a verdict, and no other one was announced since it began."""
    exit_code: int | None
    """Also of a job that failed before there was a verdict; None where it is not known."""
    run_by: str | None
    unexplained: int | None
    late: int | None
    is_built: bool
    is_published: bool
    """Whether the latest build was published."""
    question: int | None
    """Number of the question to a person about the latest build; None without one, or once it is decided."""
    delivered: dict[str, Delivered]
    """By table, for those with a registered revision."""
    tables: frozenset[str] | None = None
    """Tables that the code of its last published build declared; None where it is not known."""


def known_intervals(pipelines: Sequence[str], since: datetime, until: datetime) -> list[KnownInterval]:
    """Return the intervals of the pipelines that begin in `[since, until)`, in the order of pipeline and time.

    One snapshot: an interval that is published meanwhile is shown as before or as after it.
    """
    # Before the snapshot: what ends meanwhile has ended there.
    lost = lost_attempts(*_begin_in(pipelines, since, until))
    with session() as ledger:
        ledger.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        rows = ledger.execute(intervals_query(pipelines, since, until)).all()
        delivered = _delivered(ledger, pipelines, since, until)
    return [_known(row, row.attempt in lost, delivered.get(row.id, {})) for row in rows]


def unregistered_intervals(pipeline: str, until: datetime = _EVER[1]) -> list[KnownInterval]:
    """Return the pinned intervals of a pipeline that are not registered, or of which a later run failed, in order.

    They come without what they deliver. `until`: only those that begin before it.
    """
    is_registered = IntervalRow.state == IntervalState.REGISTERED
    reruns = [each for each in _intervals_where(pipeline, until, is_registered, _FAILED_ONCE) if _has_failed(each)]
    is_open = IntervalRow.state != IntervalState.REGISTERED
    return sorted([*_intervals_where(pipeline, until, is_open), *reruns], key=lambda each: each.from_time)


def _intervals_where(pipeline: str, until: datetime, *conditions: ColumnElement[bool]) -> list[KnownInterval]:
    lost = lost_attempts(*_begin_in([pipeline], _EVER[0], until), *conditions)
    wanted = intervals_query([pipeline], _EVER[0], until).where(*conditions)
    with session() as ledger:
        return [_known(row, row.attempt in lost, {}) for row in ledger.execute(wanted).all()]


def _has_failed(known: KnownInterval) -> bool:
    return not known.is_under_way and bool(known.exit_code or known.has_no_verdict)


def _known(row: Row[Any], is_lost: bool, delivered: dict[str, Delivered]) -> KnownInterval:
    is_open = row.attempt is not None and row.ended_at is None
    has_died = is_open and (is_lost or row.exit_code is not None)
    is_outdated = has_died and row.is_outdated
    return KnownInterval(
        row.pipeline,
        row.from_time,
        row.to_time,
        row.state,
        row.attempt,
        is_open and not has_died,
        has_died and not is_outdated,
        None if is_outdated else row.exit_code,
        row.run_by,
        row.unexplained,
        row.late,
        row.build is not None,
        row.published_at is not None,
        row.question,
        delivered,
        None if row.tables is None else frozenset(row.tables),
    )


def _begin_in(pipelines: Sequence[str], since: datetime, until: datetime) -> tuple[ColumnElement[bool], ...]:
    return (IntervalRow.pipeline.in_(list(pipelines)), IntervalRow.from_time >= since, IntervalRow.from_time < until)


def intervals_query(pipelines: Sequence[str], since: datetime, until: datetime) -> Select:
    """Return the query over intervals with the latest attempt and the latest build of each.

    Builds for comparison only do not count, and their attempts neither.
    """
    other = aliased(Attempt)
    announced = select(other.id).where(
        other.interval_id == Attempt.interval_id, other.run_by != REBUILD, other.ended_at > Attempt.started_at
    )
    attempt = (
        select(
            Attempt.id,
            Attempt.ended_at,
            Attempt.exit_code,
            Attempt.run_by,
            announced.exists().label("is_outdated"),
        )
        .where(Attempt.interval_id == IntervalRow.id, Attempt.run_by != REBUILD)
        .order_by(Attempt.id.desc())
        .limit(1)
        .lateral()
    )
    build = (
        select(Build.id, Build.unexplained, Build.late, Build.passed, Build.published_at)
        .join(Attempt, Attempt.id == Build.attempt_id)
        .where(Build.interval_id == IntervalRow.id, Attempt.run_by != REBUILD)
        .order_by(Build.id.desc())
        .limit(1)
        .lateral()
    )
    question = (
        select(Approval.id, Approval.approved)
        .join(Build, Build.id == Approval.build_id)
        .where(Approval.build_id == build.c.id, still_counts())
        .order_by(Approval.id.desc())
        .limit(1)
        .lateral()
    )
    return (
        select(
            IntervalRow.id,
            IntervalRow.pipeline,
            IntervalRow.from_time,
            IntervalRow.to_time,
            IntervalRow.state,
            attempt.c.id.label("attempt"),
            attempt.c.ended_at,
            attempt.c.exit_code,
            attempt.c.run_by,
            attempt.c.is_outdated,
            build.c.id.label("build"),
            build.c.unexplained,
            build.c.late,
            build.c.published_at,
            DeclaredTables.tables,
            case((and_(question.c.approved.is_(None), build.c.passed.is_(False)), question.c.id)).label("question"),
        )
        .select_from(IntervalRow)
        .join(DeclaredTables, DeclaredTables.id == IntervalRow.declared, isouter=True)
        .join(attempt, true(), isouter=True)
        .join(build, true(), isouter=True)
        .join(question, true(), isouter=True)
        .where(*_begin_in(pipelines, since, until))
        .order_by(IntervalRow.pipeline, IntervalRow.from_time)
    )


def delivered_query(pipelines: Sequence[str], since: datetime, until: datetime) -> Select:
    """Return the query over registered revisions, by interval and table."""
    date = func.substring(Revision.table_partition, r"(?:^|/)date=(\d{4}-\d\d-\d\d)(?:/|$)")
    own_date = func.to_char(func.timezone("UTC", IntervalRow.from_time), "YYYY-MM-DD")
    return (
        select(
            Revision.interval_id,
            Revision.table_name,
            func.sum(Revision.rows),
            func.count().filter(date < own_date),
        )
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .where(*_begin_in(pipelines, since, until), Revision.state == RevisionState.REGISTERED)
        .group_by(Revision.interval_id, Revision.table_name)
    )


def _delivered(
    ledger: Session, pipelines: Sequence[str], since: datetime, until: datetime
) -> dict[int, dict[str, Delivered]]:
    delivered: dict[int, dict[str, Delivered]] = {}
    for interval, table, rows, late in ledger.execute(delivered_query(pipelines, since, until)):
        delivered.setdefault(interval, {})[table] = Delivered(int(rows), late)
    return delivered


def pinned_time(pipelines: Sequence[str]) -> dict[str, tuple[datetime, datetime]]:
    """Return, by pipeline, where its first pinned interval begins and its last one ends."""
    wanted = (
        select(IntervalRow.pipeline, func.min(IntervalRow.from_time), func.max(IntervalRow.to_time))
        .where(IntervalRow.pipeline.in_(list(pipelines)))
        .group_by(IntervalRow.pipeline)
    )
    with session() as ledger:
        return {pipeline: (first, last) for pipeline, first, last in ledger.execute(wanted)}
