"""Builds in the ledger: what an attempt built in one go, and how it was published.

An attempt that is run again builds again. The latest build counts, and among those of an interval that passed, the
latest is registered, in whatever order they are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import func, null, select
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.completeness.tables import note_published
from include.ledger.database import session
from include.ledger.erasures.coordinates import check_noted, check_registered, lock_erasing
from include.ledger.intervals.attempts import AttemptSpec, latest_build, note_fates, repins_since
from include.ledger.intervals.findings import BuildFindings, DeltaVersion, Findings, Validation, findings_of
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.revisions import Changes, changes_of, move, rows_of_build
from include.ledger.intervals.states import PUBLISHABLE, IntervalState, RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.listings import ListedReport, note_listed
from include.ledger.models import Attempt, Build, Erasure, IntervalRow, Revision
from include.ledger.validation.results import keep_results


@dataclass(frozen=True)
class Registration:
    """A registration that was begun and not finished."""

    build: int
    pinned: PinnedInterval
    changes: Changes


TableColumns = Mapping[str, Mapping[str, str]]
"""By table, its columns with their types."""


def note_build(
    attempt: AttemptSpec,
    built: Iterable[BuiltRevision],
    findings: BuildFindings,
    *,
    known: int = 0,
    columns: TableColumns | None = None,
    also_named: TableColumns | None = None,
    partition_by: Mapping[str, str] | None = None,
    listed: Iterable[ListedReport] = (),
) -> int:
    """Note what an attempt has built and found, discard what it built before, and return the build's id.

    Earlier revisions that are registered, or being registered, stay. `known` is the last erasure when the build began,
    `columns` are its tables' declared columns, `partition_by` those of the archive's partitions and their sources. What
    its listings hold is kept unless something is unexplained. Raises AnotherWriter when an erasure began since.
    """
    with session() as ledger:
        check_noted(ledger, attempt.pinned, known)
        row = ledger.get_one(Attempt, attempt.id, with_for_update=True)
        for earlier in _unpublished(ledger, attempt.id):
            move(earlier, RevisionState.DISCARDED)
        build = Build(attempt_id=row.id, interval_id=row.interval_id, findings={}, columns=columns)
        build.also_named = dict(also_named) if also_named else None
        build.partition_by = dict(partition_by) if partition_by else None
        ledger.add(build)
        ledger.flush()
        _keep(ledger, row, build, Findings(findings))
        ledger.add_all(_row(attempt, build.id, each) for each in built)
        # Transactions that only refer to the row are not blocked; another attempt's build waits for this one.
        interval = ledger.get_one(IntervalRow, row.interval_id, with_for_update={"key_share": True})
        if not findings.reconciliation.unexplained:
            note_listed(ledger, build, listed)
            if interval.state != IntervalState.REGISTERED:
                # Later attempts are compared with these; a registered build keeps its own until another is (`finish`).
                note_fates(ledger, interval.id, findings.ranges, findings.fates)
        return build.id


def _unpublished(ledger: Session, attempt: int) -> Sequence[Revision]:
    is_open = Revision.state.in_((RevisionState.BUILT, RevisionState.VALIDATED))
    return ledger.scalars(select(Revision).where(Revision.attempt_id == attempt, is_open).with_for_update()).all()


def _row(attempt: AttemptSpec, build: int, built: BuiltRevision) -> Revision:
    return Revision(
        id=built.revision,
        table_name=built.table,
        table_partition=built.partition,
        interval_id=attempt.pinned.id,
        attempt_id=attempt.id,
        build_id=build,
        location=built.location,
        rows=built.rows,
        content_hash=built.content_hash,
        code_version=attempt.code_version,
        state=RevisionState.BUILT,
        files=built.files,
    )


def _keep(ledger: Session, attempt: Attempt, build: Build, findings: Findings) -> None:
    build.findings = attempt.verdict = findings.as_json()
    if findings.build is not None:
        for name, count in asdict(findings.build.reconciliation).items():
            setattr(build, name, count)
    if findings.validation is not None:
        build.passed = findings.validation.success
        keep_results(ledger, build, findings.validation)


def is_published(build: int) -> bool:
    """Return whether a build was published: everything that it changes in the catalog is done."""
    with session() as ledger:
        return ledger.get_one(Build, build).published_at is not None


def reject(attempt: AttemptSpec, validation: Validation) -> None:
    """Note that a build did not pass, and reject its revisions; what is registered stays.

    Raises AnotherWriter like `begin_registration`.
    """
    with session() as ledger:
        _reject_revisions(ledger, _judged(ledger, attempt, validation))


def refuse(attempt: AttemptSpec, question: int, decision: Mapping[str, str]) -> None:
    """Note that a person refused a build that waits, and reject its revisions; what is registered stays.

    Raises AnotherWriter when the attempt was built again meanwhile.
    """
    with session() as ledger:
        row, build = _latest(ledger, attempt)
        # As the ledger has it now: an erasure may have cleaned it since the attempt was read.
        findings = findings_of(build.findings)
        if findings.validation is not None:
            refused = replace(findings.validation, question=question, decision=dict(decision))
            _keep(ledger, row, build, replace(findings, validation=refused))
            _reject_revisions(ledger, build)


def _reject_revisions(ledger: Session, build: Build) -> None:
    for each in rows_of_build(ledger, build.id):
        if each.state in PUBLISHABLE:
            move(each, RevisionState.REJECTED)


def hold(attempt: AttemptSpec, validation: Validation) -> None:
    """Note that a build waits for a person: its revisions and what is registered stay as they are.

    Raises AnotherWriter like `begin_registration`.
    """
    with session() as ledger:
        _judged(ledger, attempt, validation)


def begin_registration(attempt: AttemptSpec, validation: Validation, changes: Changes) -> Registration:
    """Note what a build that passed changes in the catalog. Nothing may be changed there before.

    Raises AnotherWriter when the attempt was built again meanwhile, or records were erased since it was built.
    """
    with session() as ledger:
        build = _judged(ledger, attempt, validation)
        points = {(each.revision, each.table, each.partition) for each in changes.points}
        for each in rows_of_build(ledger, build.id):
            move(each, RevisionState.VALIDATED)
            if (each.id, each.table_name, each.table_partition) in points:
                move(each, RevisionState.REGISTERING)
        build.registering_at, build.changes = func.now(), changes.as_json()
        return Registration(build.id, attempt.pinned, changes)


def note_replaced(attempt: AttemptSpec, validation: Validation) -> None:
    """Note that a build passed, but a later one of its interval is registered already, and stays.

    Raises AnotherWriter like `begin_registration`.
    """
    with session() as ledger:
        build = _judged(ledger, attempt, validation)
        for each in rows_of_build(ledger, build.id):
            # Those of a registration that was given up are superseded already.
            if each.state != RevisionState.SUPERSEDED:
                move(each, RevisionState.VALIDATED)
                move(each, RevisionState.SUPERSEDED)
        build.published_at = func.now()


def _judged(ledger: Session, attempt: AttemptSpec, validation: Validation) -> Build:
    """Note what the checkpoint found in the attempt's latest build, and return the build, locked.

    Nothing that it read of records that were erased since comes into the ledger.
    """
    row, build = _latest(ledger, attempt)
    check_registered(ledger, attempt.pinned, build.id)
    _keep(ledger, row, build, replace(findings_of(build.findings), validation=validation))
    return build


def note_delta(attempt: AttemptSpec, version: DeltaVersion) -> None:
    """Note the version of the Delta table that the archive's view now shows."""
    with session() as ledger:
        row, build = _latest(ledger, attempt)
        _keep(ledger, row, build, replace(findings_of(build.findings), delta=version))
        build.in_delta = True


def _latest(ledger: Session, attempt: AttemptSpec) -> tuple[Attempt, Build]:
    """Return attempt and build, locked. Raise AnotherWriter when the attempt has a later build."""
    # Before the rows: an erasure that begins holds it and changes them, and would overwrite what is noted meanwhile.
    lock_erasing(ledger, attempt.pinned.pipeline)
    row = ledger.get_one(Attempt, attempt.id, with_for_update=True)
    build = latest_build(ledger, attempt.id)
    if build is None or build.id != attempt.build:
        raise AnotherWriter(
            f"attempt {attempt.id} of {attempt.pinned.interval} was built again while it was published",
            remedy="publish it again: its latest build is taken",
            pipeline=attempt.pinned.pipeline,
        )
    return row, build


def later_build_published(attempt: AttemptSpec) -> int | None:
    """Return the published build of the interval that is later than the attempt's latest; None without one."""
    with session() as ledger:
        later = Build.interval_id == attempt.pinned.id, Build.published_at.is_not(None), Build.id > attempt.build
        return ledger.scalar(select(func.max(Build.id)).where(*later))


def begun_registrations(pipeline: str) -> list[Registration]:
    """Return the registrations of the pipeline that were begun and not finished, in the order of their builds."""
    with session() as ledger:
        rows = ledger.execute(
            select(Build, IntervalRow)
            .join(IntervalRow, IntervalRow.id == Build.interval_id)
            .where(IntervalRow.pipeline == pipeline, Build.registering_at.is_not(None), Build.published_at.is_(None))
            .order_by(Build.id)
        ).all()
        return [Registration(row.id, pinned_of(ledger, of), changes_of(ledger, row)) for row, of in rows]


def give_up(build: int) -> None:
    """Note that a registration which was begun is not finished any more; what is registered stays."""
    with session() as ledger:
        for each in rows_of_build(ledger, build):
            if each.state in (RevisionState.VALIDATED, RevisionState.REGISTERING):
                move(each, RevisionState.SUPERSEDED)
        row = ledger.get_one(Build, build, with_for_update=True)
        row.registering_at, row.changes = None, null()


def finish_registration(registration: Registration) -> None:
    """Note that the catalog has all changes of a registration: all of its revisions change state at once."""
    with session() as ledger:
        finish(ledger, registration)


def finish(ledger: Session, registration: Registration) -> None:
    """Do what `finish_registration` does within a transaction; nothing for a finished registration."""
    lock_erasing(ledger, registration.pinned.pipeline)
    changes, build = registration.changes, ledger.get_one(Build, registration.build, with_for_update=True)
    if build.published_at is not None:
        return
    for stale in (*changes.drops, *changes.undeclared):
        move(_locked(ledger, stale), RevisionState.SUPERSEDED)
    for point in changes.points:
        for before in _registered_at(ledger, point):
            move(before, RevisionState.SUPERSEDED)
        move(_locked(ledger, point), RevisionState.REGISTERED)
    for spare in changes.kept:
        row = _locked(ledger, spare)
        # Housekeeping may have removed it since the registration was begun.
        if row.state == RevisionState.VALIDATED:
            move(row, RevisionState.DISCARDED)
    undeclared = {each.table for each in changes.undeclared}
    note_published(ledger, build, (point.table for point in changes.points), without=undeclared)
    # Before it is asked whether the interval was pinned again, which may be under way; and until the end, because
    # `removal.mark_removed` looks at who built what is registered.
    held = ledger.get_one(IntervalRow, build.interval_id, with_for_update={"key_share": True})
    if ledger.scalar(repins_since(build).limit(1)) is None:
        held.state = IntervalState.REGISTERED
        if (findings := findings_of(build.findings).build) is not None and not _is_erased_since(ledger, build):
            note_fates(ledger, build.interval_id, findings.ranges, findings.fates)


def _locked(ledger: Session, revision: BuiltRevision) -> Revision:
    return ledger.get_one(Revision, (revision.revision, revision.table, revision.partition), with_for_update=True)


def _registered_at(ledger: Session, built: BuiltRevision) -> Sequence[Revision]:
    wanted = select(Revision).where(Revision.state == RevisionState.REGISTERED, Revision.id != built.revision)
    wanted = wanted.where(Revision.table_name == built.table, Revision.table_partition == built.partition)
    return ledger.scalars(wanted.with_for_update()).all()


def _is_erased_since(ledger: Session, build: Build) -> bool:
    """Return whether records of the interval were erased since: their fates were then counted again."""
    later = (Erasure.intervals.contains([build.interval_id]), Erasure.last_build >= build.id)
    return ledger.scalar(select(Erasure.id).where(*later).limit(1)) is not None
