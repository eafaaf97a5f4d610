"""Tables as a whole: rows, revisions in every state, and the attempts under way or lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, case, func, select, tuple_
from sqlalchemy.orm import aliased

from include.ledger.database import session
from include.ledger.intervals.attempts import REBUILD
from include.ledger.intervals.builds import begun_registrations
from include.ledger.intervals.locks import with_attempts, with_publications
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import move
from include.ledger.intervals.states import QUIET, RETIRED, IntervalState, RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Approval, Attempt, Build, IntervalRange, IntervalRow, Revision
from include.times import Interval

QUEUED = timedelta(days=1)
"""How long an attempt may be without a process before its first job, or when that is done: the next task of a run under
Airflow may wait for a slot while other intervals are built."""

_AT_ONCE = 1000
"""Revisions that are read at once."""


@dataclass(frozen=True)
class KnownRevision(BuiltRevision):
    """A revision in any state, with the interval and the attempt that it comes from."""

    state: RevisionState
    attempt: int
    pipeline: str
    """The pipeline of that interval: not the one that declares the table when its view was another's before."""
    interval: Interval


def _known(revision: Revision, interval: IntervalRow) -> KnownRevision:
    return KnownRevision(
        revision.table_name,
        revision.table_partition,
        revision.id,
        revision.location,
        revision.rows,
        revision.content_hash,
        dict(revision.files),
        RevisionState(revision.state),
        revision.attempt_id,
        interval.pipeline,
        Interval(interval.from_time, interval.to_time),
    )


def last_delta(pipeline: str) -> tuple[int, int] | None:
    """Return the last build for which a version of the pipeline's Delta table was noted, and that; None without one."""
    version = Build.findings["delta"]["version"].as_integer()
    wanted = select(Build.id, version).join(IntervalRow, IntervalRow.id == Build.interval_id)
    with session() as ledger:
        noted = wanted.where(IntervalRow.pipeline == pipeline, version.is_not(None))
        return ledger.execute(noted.order_by(Build.id.desc()).limit(1)).tuples().first()


def begun_intervals(pipeline: str) -> tuple[list[PinnedInterval], list[PinnedInterval]]:
    """Return the intervals whose registration was begun: those that somebody publishes now, and those that nobody does.

    The latter publication was killed, or refused: only what the ledger has of them counts.
    """
    begun = {each.pinned.id: each.pinned for each in begun_registrations(pipeline)}.values()
    held = with_publications(pipeline, [each.interval for each in begun])
    return [each for each in begun if each.interval in held], [each for each in begun if each.interval not in held]


def registered_rows(table: str, pipeline: str, *, without: int | None = None) -> int:
    """Return how many rows a pipeline's intervals have registered in a table; `without`: but for those of this one."""
    wanted = select(func.coalesce(func.sum(Revision.rows), 0)).join(IntervalRow, IntervalRow.id == Revision.interval_id)
    wanted = wanted.where(IntervalRow.pipeline == pipeline, Revision.interval_id.is_distinct_from(without))
    with session() as ledger:
        of_table = Revision.table_name == table, Revision.state == RevisionState.REGISTERED
        return int(ledger.scalar(wanted.where(*of_table)) or 0)


def count_registered(tables: Iterable[str], pipeline: str, *, without: Iterable[int]) -> dict[str, int]:
    """Return how many partitions a pipeline's intervals have registered in tables, but for those of some intervals."""
    wanted = select(Revision.table_name, func.count()).join(IntervalRow, IntervalRow.id == Revision.interval_id)
    wanted = wanted.where(IntervalRow.pipeline == pipeline, Revision.interval_id.not_in(list(without)))
    with session() as ledger:
        of_tables = Revision.table_name.in_(list(tables)), Revision.state == RevisionState.REGISTERED
        return dict(ledger.execute(wanted.where(*of_tables).group_by(Revision.table_name)).tuples().all())


def revisions_of(table: str) -> Iterator[KnownRevision]:
    """Yield a table's revisions but removed ones, by table partition.

    They are read in portions: each has all that is known of its files, and a table has millions. A revision that is
    registered meanwhile may be missed.
    """
    key = tuple_(Revision.table_partition, Revision.id)
    wanted = (
        select(Revision, IntervalRow)
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .where(Revision.table_name == table, Revision.state != RevisionState.REMOVED)
        .order_by(Revision.table_partition, Revision.id)
        .limit(_AT_ONCE)
    )
    last: KnownRevision | None = None
    while True:
        following = wanted.where(key > (last.partition, last.revision)) if last else wanted
        # No transaction stays open while the caller reads the files.
        with session() as ledger:
            portion = [_known(*row) for row in ledger.execute(following).tuples()]
        yield from portion
        if len(portion) < _AT_ONCE:
            return
        last = portion[-1]


def states_at(table: str, locations: Iterable[str]) -> dict[str, RevisionState]:
    """Return the states of the revisions that lie at these locations, by location."""
    wanted = set(locations)
    # No index leads to a location, but one to its last part: a revision is named as its directory.
    names = sorted({location.rpartition("/")[2] for location in wanted})
    states: dict[str, RevisionState] = {}
    for start in range(0, len(names), _AT_ONCE):
        named = Revision.id.in_(names[start : start + _AT_ONCE])
        found = select(Revision.location, Revision.state).where(named, Revision.table_name == table)
        with session() as ledger:
            # A revision's name is that of all table partitions of its build.
            rows = ledger.execute(found, execution_options={"yield_per": _AT_ONCE})
            states |= {location: RevisionState(state) for location, state in rows if location in wanted}
    return states


def revisions_outside(tables: Iterable[str], lake: str) -> list[str]:
    """Return the locations of the tables' revisions, but removed ones, that do not lie below a lake's URI, in order."""
    wanted = (
        select(Revision.location)
        .where(
            Revision.table_name.in_(list(tables)),
            Revision.state != RevisionState.REMOVED,
            ~Revision.location.startswith(f"{lake}/", autoescape=True),
        )
        .order_by(Revision.location)
    )
    with session() as ledger:
        return list(ledger.scalars(wanted))


def revisions_no_longer_needed(tables: Iterable[str], before: datetime) -> list[KnownRevision]:
    """Return revisions that were retired, or built and never registered, before a time; oldest first.

    The files of an interval's latest build stay as long as a person has to decide about it, or has approved it and it
    is not published yet.
    """
    wanted = (
        select(Revision, IntervalRow)
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .where(
            Revision.table_name.in_(list(tables)),
            Revision.state.in_({*RETIRED, RevisionState.BUILT, RevisionState.VALIDATED}),
            func.coalesce(Revision.retired_at, Revision.built_at) < before,
            ~_waits_for_a_person_or_publication().exists(),
        )
        .order_by(Revision.built_at)
    )
    with session() as ledger:
        return [_known(*row) for row in ledger.execute(wanted).tuples()]


def _waits_for_a_person_or_publication() -> Select:
    later, asked_again = aliased(Build), aliased(Approval)
    built_again = (
        select(later.id)
        .join(Attempt, Attempt.id == later.attempt_id)
        .where(later.interval_id == Revision.interval_id, later.id > Revision.build_id, Attempt.run_by != REBUILD)
        .correlate(Revision)
    )
    is_last = (
        ~select(asked_again.id).where(asked_again.build_id == Approval.build_id, asked_again.id > Approval.id).exists()
    )
    waits_for_publication = Approval.approved.is_(True) & Build.published_at.is_(None)
    return (
        select(Approval.id)
        .join(Build, Build.id == Approval.build_id)
        .where(Approval.build_id == Revision.build_id, is_last, Approval.approved.is_(None) | waits_for_publication)
        .where(~built_again.exists())
    )


def mark_revisions_removed(revisions: Sequence[KnownRevision]) -> None:
    """Record in one transaction that the directories of the revisions may be deleted.

    A revision whose state has changed since it was read is left as it is.
    """
    with session() as ledger:
        # In the order of `rows_of_build`, which locks them, too.
        for each in sorted(revisions, key=lambda known: (known.table, known.partition, known.revision)):
            key = (each.revision, each.table, each.partition)
            row = ledger.get_one(Revision, key, with_for_update=True)
            if row.state == each.state:
                move(row, RevisionState.REMOVED)


def attempts_under_way(pipeline: str, since: datetime) -> dict[int, Interval]:
    """Return the attempts that have not ended and may be reading and writing.

    They began after `since` and no job of them has failed, so they may be between two of their processes; or some
    process works on their interval now.
    """
    # Nobody ends an attempt that failed without a verdict. A retry takes the lock before it notes its beginning.
    may_be_between = (Attempt.started_at > since) & Attempt.exit_code.is_(None)
    wanted = (
        select(Attempt.id, IntervalRow.from_time, IntervalRow.to_time, may_be_between)
        .join(IntervalRow, IntervalRow.id == Attempt.interval_id)
        .where(IntervalRow.pipeline == pipeline, Attempt.ended_at.is_(None))
    )
    with session() as ledger:
        found = [(key, Interval(begin, end), between) for key, begin, end, between in ledger.execute(wanted)]
    worked_on = with_attempts(pipeline, {interval for _, interval, between in found if not between})
    return {key: interval for key, interval, between in found if between or interval in worked_on}


def has_later_attempt(attempt: int) -> bool:
    """Return whether an attempt of the same interval began after this one, has not ended and was not lost.

    Those for comparison only do not count.
    """
    of_interval = select(Attempt.interval_id).where(Attempt.id == attempt).scalar_subquery()
    later = select(Attempt.id).where(
        Attempt.interval_id == of_interval,
        Attempt.id > attempt,
        Attempt.run_by != REBUILD,
        Attempt.ended_at.is_(None),
    )
    with session() as ledger:
        found = set(ledger.scalars(later))
    return bool(found) and not found <= lost_attempts(IntervalRow.id == of_interval)


def lost_attempts(*of_intervals: ColumnElement[bool]) -> frozenset[int]:
    """Return the attempts that ended without a verdict, of the intervals that meet these conditions.

    Their job or its host died: nothing of them began or was built for `QUIET`, or for `QUEUED` where no job began since
    they did, or since their latest build was judged; and no process works on their interval.
    """
    begun = func.greatest(Attempt.started_at, func.max(Build.noted_at))
    sign = func.greatest(begun, func.max(Build.published_at))
    is_judged = func.max(Build.noted_at).filter(Build.passed.is_not(None)) >= begun
    patience = case((Attempt.verdict.is_(None) | is_judged, QUEUED), else_=QUIET)
    wanted = (
        select(Attempt.id, IntervalRow.pipeline, IntervalRow.from_time, IntervalRow.to_time)
        .join(IntervalRow, IntervalRow.id == Attempt.interval_id)
        .outerjoin(Build, Build.attempt_id == Attempt.id)
        .where(Attempt.ended_at.is_(None), *of_intervals)
        .group_by(Attempt.id, IntervalRow.id)
        .having(sign < func.now() - patience)
    )
    places: dict[str, dict[int, Interval]] = {}
    with session() as ledger:
        for attempt, pipeline, begin, end in ledger.execute(wanted):
            places.setdefault(pipeline, {})[attempt] = Interval(begin, end)
    idle = [attempt for pipeline, silent in places.items() for attempt in silent.keys() - _worked_on(pipeline, silent)]
    if not idle:
        return frozenset()
    # One that was announced meanwhile has let its lock go.
    with session() as ledger:
        return frozenset(ledger.scalars(select(Attempt.id).where(Attempt.id.in_(idle), Attempt.ended_at.is_(None))))


def _worked_on(pipeline: str, attempts: Mapping[int, Interval]) -> set[int]:
    worked_on = with_attempts(pipeline, attempts.values())
    return {attempt for attempt, interval in attempts.items() if interval in worked_on}


def intervals_without_revisions(pipeline: str, table: str) -> list[Interval]:
    """Return intervals in state registered, with archived records but no registered revision of the table."""
    revisions = select(Revision.interval_id).where(
        Revision.state == RevisionState.REGISTERED,
        Revision.table_name == table,
        Revision.interval_id == IntervalRow.id,
    )
    archived = (
        select(func.sum(func.coalesce(IntervalRange.archived, 0)))
        .where(IntervalRange.interval_id == IntervalRow.id)
        .scalar_subquery()
    )
    wanted = (
        select(IntervalRow.from_time, IntervalRow.to_time)
        .where(IntervalRow.pipeline == pipeline, IntervalRow.state == IntervalState.REGISTERED)
        .where(~revisions.exists(), archived > 0)
        .order_by(IntervalRow.from_time)
    )
    with session() as ledger:
        return [Interval(begin, end) for begin, end in ledger.execute(wanted)]
