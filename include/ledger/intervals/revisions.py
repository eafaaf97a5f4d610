"""Revisions in the ledger: what was built, validated and registered for each table partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, false, func, or_, select, update
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.intervals import locks
from include.ledger.intervals.findings import BuildFindings, findings_of
from include.ledger.intervals.states import RETIRED, IntervalState, RevisionState, check_transition
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Build, IntervalRow, Revision
from include.offsets import OffsetRange
from include.times import Interval

UNKNOWN = "unknown"
"""Version of the code that committed micro-batches before versions were noted."""

ERASED = "=(erased "
"""In the name of a table partition, after which an erasure's numbers replace the value of a column."""


@dataclass(frozen=True)
class RegisteredRevision(BuiltRevision):
    """A revision that the catalog points at."""

    interval_id: int


@dataclass(frozen=True)
class LeftOut:
    """A registered interval whose rows the Delta table lacks."""

    interval_id: int
    interval: Interval
    builds: tuple[int, ...]
    """Its published builds of which no commit to the table was noted."""


@dataclass(frozen=True)
class Changes:
    """What registering a build changes; noted before the first change is made."""

    points: tuple[BuiltRevision, ...] = ()
    """Revisions that the catalog is to point at."""
    drops: tuple[BuiltRevision, ...] = ()
    """Registered revisions of table partitions that the build does not deliver."""
    kept: tuple[BuiltRevision, ...] = ()
    """Revisions equal to the registered ones: these stay, the new files go."""
    undeclared: tuple[BuiltRevision, ...] = ()
    """Noted points that were not made, because their tables are no longer declared; found when it is finished."""

    def as_json(self) -> dict[str, Any]:
        """Return the form that the ledger keeps."""
        return {
            name: [{"table": each.table, "partition": each.partition, "revision": each.revision} for each in part]
            for name, part in (("points", self.points), ("drops", self.drops), ("kept", self.kept))
        }


def changes_of(ledger: Session, build: Build) -> Changes:
    """Return what was noted that registering a build changes."""

    def part(name: str) -> tuple[BuiltRevision, ...]:
        keys = [(each["revision"], each["table"], each["partition"]) for each in (build.changes or {}).get(name, ())]
        return tuple(as_built(ledger.get_one(Revision, key)) for key in keys)

    return Changes(part("points"), part("drops"), part("kept"))


def as_built(row: Revision) -> BuiltRevision:
    """Return a ledger row as its revision lies in the lake."""
    return BuiltRevision(
        row.table_name, row.table_partition, row.id, row.location, row.rows, row.content_hash, dict(row.files)
    )


def of_build(build: int) -> list[BuiltRevision]:
    """Return the revisions of a build, by table and partition."""
    with session() as ledger:
        return [as_built(row) for row in ledger.scalars(_of_build(build))]


def rows_of_build(ledger: Session, build: int) -> Sequence[Revision]:
    """Return the ledger's rows of a build, by table and partition, locked: housekeeping may be removing some."""
    return ledger.scalars(_of_build(build).with_for_update()).all()


def _of_build(build: int) -> Select[Revision]:
    wanted = select(Revision).where(Revision.build_id == build)
    return wanted.order_by(Revision.table_name, Revision.table_partition)


def registered_of_interval(interval_id: int) -> list[BuiltRevision]:
    """Return what the catalog points at for an interval."""
    with session() as ledger:
        rows = ledger.scalars(
            select(Revision)
            .where(Revision.interval_id == interval_id, Revision.state == RevisionState.REGISTERED)
            .order_by(Revision.table_name, Revision.table_partition)
        )
        return [as_built(row) for row in rows]


def no_longer_registered(interval_id: int) -> list[tuple[str, str]]:
    """Return the tables and partitions that an interval once registered and has no longer.

    Without those that an erasure renamed: nobody ever had a partition of that name.
    """
    place = Revision.table_name, Revision.table_partition
    of_interval = select(*place).where(Revision.interval_id == interval_id)
    once = of_interval.where(Revision.registered_at.is_not(None), ~Revision.table_partition.contains(ERASED))
    now = of_interval.where(Revision.state == RevisionState.REGISTERED)
    with session() as ledger:
        return sorted(ledger.execute(once.except_(now)).tuples())


def registered(table: str, partition: str | None = None, *, pipeline: str | None = None) -> list[RegisteredRevision]:
    """Return the registered revisions of a table, or of one of its partitions, by table partition.

    `pipeline`: those of its intervals. A table has others, too, when its view was another pipeline's before.
    """
    with session() as ledger:
        wanted = select(Revision).where(Revision.table_name == table, Revision.state == RevisionState.REGISTERED)
        if partition is not None:
            wanted = wanted.where(Revision.table_partition == partition)
        if pipeline is not None:
            wanted = wanted.join(IntervalRow, IntervalRow.id == Revision.interval_id)
            wanted = wanted.where(IntervalRow.pipeline == pipeline)
        rows = ledger.scalars(wanted.order_by(Revision.table_partition))
        return [RegisteredRevision(**vars(as_built(row)), interval_id=row.interval_id) for row in rows]


def left_out_of_delta(pipeline: str, own: int | None = None) -> list[LeftOut]:
    """Return the registered intervals whose rows the pipeline's Delta table lacks, in order of time.

    Those are left out with which an attempt is under way, as it puts its rows there itself; but not the caller's `own`.
    While the declaration asks for no such table, all that is registered is missing.
    """
    wanted = select(IntervalRow.id, IntervalRow.from_time, IntervalRow.to_time, func.array_agg(Build.id))
    wanted = wanted.join(Build, Build.interval_id == IntervalRow.id)
    wanted = wanted.where(IntervalRow.pipeline == pipeline, Build.published_at.is_not(None), ~Build.in_delta)
    with session() as ledger:
        rows = ledger.execute(wanted.group_by(IntervalRow.id).order_by(IntervalRow.from_time)).tuples().all()
    found = [LeftOut(key, Interval(begin, end), tuple(builds)) for key, begin, end, builds in rows]
    with_attempts = locks.with_attempts(pipeline, [each.interval for each in found])
    return [each for each in found if each.interval_id == own or each.interval not in with_attempts]


def note_in_delta(builds: Iterable[int]) -> None:
    """Note that a version of the Delta table, which its view shows, has what these builds registered, or later ones."""
    with session() as ledger:
        ledger.execute(update(Build).where(Build.id.in_(builds)).values(in_delta=True))


def leave_out_of_delta(intervals: Collection[int]) -> None:
    """Note that the Delta table may lack the rows of these intervals, whatever was noted before."""
    with session() as ledger:
        published = (Build.interval_id.in_(intervals), Build.published_at.is_not(None))
        ledger.execute(update(Build).where(*published).values(in_delta=False))


def references_of_published(interval_id: int) -> dict[str, str]:
    """Return the SHA-256 of each reference's content by which the interval's last published build was made.

    That build need not have changed what is registered, whose revisions an earlier one made then. Empty without one, or
    when the code that made it did not note it.
    """
    with session() as ledger:
        build = _last_published(ledger, interval_id)
        return dict(build.references) if build else {}


def published_ranges(interval_id: int) -> tuple[OffsetRange, ...]:
    """Return the ranges that the interval's last published build read; none without one."""
    with session() as ledger:
        build = _last_published(ledger, interval_id)
        return build.ranges if build else ()


def archived_records(ledger: Session, interval_id: int) -> int | None:
    """Return how many records have rows in an interval's registered revisions; None when no build was published."""
    build = _last_published(ledger, interval_id)
    return build.records.archived + build.records.replayed if build else None


def _last_published(ledger: Session, interval_id: int) -> BuildFindings | None:
    """Return what the interval's last published build found."""
    wanted = select(Build).where(Build.interval_id == interval_id, Build.published_at.is_not(None))
    row = ledger.scalar(wanted.order_by(Build.id.desc()).limit(1))
    return findings_of(row.findings).build if row is not None else None


def decoders_of_registered(interval_id: int) -> list[list[str]]:
    """Return, for each build of the interval's registered revisions, the versions of the code that decoded its rows."""
    return [sorted(build.decoder_versions) if build else [] for build in _registered_builds(interval_id)]


def decoders_of_recorded(interval_id: int) -> list[str]:
    """Return the versions of the code that counted the fates beside the interval's ranges; none before the first build.

    `builds.note_build` or `builds.finish` took them from that build, whose revisions need not be registered.
    """
    with session() as ledger:
        interval = ledger.get(IntervalRow, interval_id)
        is_registered = interval is not None and interval.state == IntervalState.REGISTERED
        counts = Build.published_at.is_not(None) if is_registered else Build.unexplained == 0
        wanted = select(Build).where(Build.interval_id == interval_id, counts)
        row = ledger.scalar(wanted.order_by(Build.id.desc()).limit(1))
        findings = findings_of(row.findings).build if row else None
        return sorted(findings.decoder_versions) if findings else []


def decoders_of_content(interval_id: int) -> list[frozenset[str]]:
    """Return, for each build that gave what is registered for an interval, the versions that decoded its rows.

    The last one changed what is registered; those before it are later, and their results were the same. None where no
    published build noted them.
    """
    with session() as ledger:
        return decoders_in(ledger, [interval_id])[interval_id]


def decoders_in(ledger: Session, intervals: Iterable[int]) -> dict[int, list[frozenset[str]]]:
    """Return `decoders_of_content` of each of the intervals, within the caller's transaction and in one statement."""
    builds: dict[int, list[frozenset[str]]] = {each: [] for each in intervals}
    # Not the whole rows: the rest of what a build found may be a thousand times as long.
    is_noted = func.coalesce(func.jsonb_typeof(Build.changes) == "object", false())
    is_changed = or_(*(_has_entries(Build.changes[name]) for name in ("points", "drops")))
    wanted = select(Build.interval_id, Build.findings["decoder_versions"], is_noted, is_changed)
    wanted = wanted.where(Build.interval_id.in_(builds), Build.published_at.is_not(None)).order_by(Build.id.desc())
    known: set[int] = set()
    for interval, versions, noted, changed in ledger.execute(wanted).tuples() if builds else ():
        if interval in known or (builds[interval] and not noted):
            # Not noted: it was published after a later build, which stayed.
            continue
        builds[interval] += [frozenset(versions)] if versions else []
        if changed or not noted:
            known.add(interval)
    return builds


def _has_entries(listed: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.coalesce(listed != func.jsonb_build_array(), false())


def _registered_builds(interval_id: int) -> list[BuildFindings | None]:
    """Return what the builds of the interval's registered revisions found, in their order."""
    registered = select(Revision.build_id).where(
        Revision.interval_id == interval_id, Revision.state == RevisionState.REGISTERED
    )
    with session() as ledger:
        rows = ledger.scalars(select(Build).where(Build.id.in_(registered)).order_by(Build.id))
        return [findings_of(row.findings).build for row in rows]


def is_of_registered_code(interval_id: int, build: int) -> bool:
    """Return whether the code that made an interval's registered revisions made those of the build, too.

    Then a row of both has the table partition that it had.
    """
    is_meant = or_(Revision.state == RevisionState.REGISTERED, Revision.build_id == build)
    # Once for each build, not for each of its table partitions, of which there may be thousands.
    made = select(Revision.code_version, Revision.build_id).where(Revision.interval_id == interval_id, is_meant)
    made_by = made.distinct().subquery().c
    wanted = select(made_by.code_version, Build.findings["decoder_versions"])
    with session() as ledger:
        found = ledger.execute(wanted.outerjoin(Build, Build.id == made_by.build_id)).tuples().all()
    codes = {(version, *sorted(decoders or ())) for version, decoders in found}
    # A version of the code, and of the one decoder of all its rows.
    return [len(code) for code in codes] == [2]


def set_state(revisions: Iterable[BuiltRevision], state: RevisionState) -> None:
    """Move revisions to a state, all or none. Raise TidemarkError when one of them may not pass to it.

    A registered revision leaves that state by a registration only (`builds.finish_registration`).
    """
    with session() as ledger:
        for built in revisions:
            key = (built.revision, built.table, built.partition)
            move(ledger.get_one(Revision, key, with_for_update=True), state)


def move(row: Revision, state: RevisionState) -> None:
    """Give a revision a state that may follow its own. Raise TidemarkError for any other."""
    check_transition(f"revision {row.id} of {row.table_name} {row.table_partition}", row.state, state)
    if row.state == state:
        return
    row.state = state
    if state == RevisionState.REGISTERED:
        row.registered_at, row.retired_at = func.now(), None
    elif state in RETIRED:
        row.retired_at = func.now()
