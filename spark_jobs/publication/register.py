"""Pointing the catalog at the revisions of a build that passed, and committing them to Iceberg tables.

What a registration changes is noted in the ledger before its first change. Whoever publishes next finishes one that
was begun, so that a kill leaves nothing half done for longer than that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from include import completeness, lake
from include.crash_points import crash_point
from include.errors import AnotherWriter, LockLost, ServiceUnreachable, TidemarkError
from include.lake.revision_files import damaged_files
from include.ledger.completeness.properties import properties_after
from include.ledger.held_locks import Check
from include.ledger.intervals import builds, locks, revisions
from include.ledger.intervals.builds import Registration
from include.ledger.intervals.findings import Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import Changes
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline
from include.serving import follow
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.iceberg import follow_columns_in_iceberg, follow_in_iceberg, put_in_iceberg
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate
from spark_jobs.spark.log import log_of

_FAILURES = (TidemarkError, *SPARK_FAILURES)

Place = tuple[str, str]
"""A table and its partition."""


def register(
    run: IntervalRun, catalog: Catalog, built: list[BuiltRevision], validation: Validation, check: Check
) -> None:
    """Point the catalog at the revisions; called by the action of a passed checkpoint only.

    A revision equal to the registered one changes nothing: the pointer stays, the new files are deleted; unless that
    one is damaged or lies outside of the lake. A partition that the interval no longer delivers is dropped.
    """
    check()
    if (later := builds.later_build_published(run.attempt)) is not None:
        log_of(run.pipeline.name).info("%s: the later build %s is registered and stays", run.pinned.interval, later)
        builds.note_replaced(run.attempt, validation)
        return
    changes = _changes(run, catalog, built)
    registration = builds.begin_registration(run.attempt, validation, changes)
    crash_point("registration_noted")
    _finish(registration, catalog, check)


def _changes(run: IntervalRun, catalog: Catalog, built: list[BuiltRevision]) -> Changes:
    registered = {(each.table, each.partition): each for each in revisions.registered_of_interval(run.pinned.id)}
    points: list[BuiltRevision] = []
    kept: list[BuiltRevision] = []
    for revision in built:
        old = registered.pop((revision.table, revision.partition), None)
        disagreement = _disagreement(catalog, old) if old is not None else ""
        if disagreement:
            log_of(run.pipeline.name).warning("%s %s: %s; rebuilt", revision.table, revision.partition, disagreement)
        unchanged = old is not None and old.content_hash == revision.content_hash and not disagreement
        (kept if unchanged else points).append(revision)
    for table in sorted({each.table for each in registered.values()} - {*run.pipeline.tables}):
        log_of(run.pipeline.name).warning(
            "%s: rows of %s leave the catalog: the table is not declared by this code", table, run.pinned.interval
        )
    return Changes(tuple(points), tuple(registered.values()), tuple(kept))


def _finish(registration: Registration, catalog: Catalog, check: Check) -> None:
    """Make the noted changes, also those that were made before, then note that all are made."""
    registration = _without_undeclared(registration, catalog)
    try:
        with giving_way(catalog, registration.pinned, registration.changes.points):
            _make_changes(registration, catalog, check)
    except _FAILURES as error:
        if not _may_pass(error):
            # Else rows that moved would be missing from the catalog for as long as it is refused. Iceberg comes before
            # the times of completeness: a table that lacks registered rows gets none.
            with suppress(*_FAILURES):
                follow_in_iceberg(catalog.pipeline, registration.pinned, check)
            with suppress(*_FAILURES):
                _follow_ledger(catalog, registration.pinned, registration.changes.points, check)
        raise
    crash_point("registration_finished")
    if catalog.follow_renames():
        crash_point("columns_renamed")
        follow_columns_in_iceberg(catalog.pipeline)
    for spare in registration.changes.kept:
        lake.delete(spare.location)
    serve_registered(catalog.pipeline)


def _make_changes(registration: Registration, catalog: Catalog, check: Check) -> None:
    changes = registration.changes
    _point_in_order(catalog, changes.points, _with_other_rows(registration, catalog), check, drops=changes.drops)
    with completeness.locked_properties(catalog.pipeline.name):
        properties = properties_after(registration)
        put_in_iceberg(catalog.pipeline, registration, properties, check)
        check()
        completeness.put_hive_properties(catalog.pipeline, properties)
        check()
        crash_point("completeness_told")
        builds.finish_registration(registration)


@contextmanager
def giving_way(catalog: Catalog, pinned: PinnedInterval, points: Sequence[BuiltRevision]) -> Iterator[None]:
    """Let the catalog follow the ledger again when the block, which may point at `points`, loses its publishing lock.

    A last change without the lock may have undone another publication's. Whoever publishes the interval now is waited
    for. Where it cannot be done, `doctor` finds what is wrong.
    """
    try:
        yield
    except LockLost:
        pipeline = catalog.pipeline
        with suppress(AnotherWriter, ServiceUnreachable), locks.publishing(pipeline.name, pinned.interval) as check:
            finish_interval(pinned, catalog, check)
            _follow_ledger(catalog, pinned, points, check)
        raise


def _follow_ledger(catalog: Catalog, pinned: PinnedInterval, points: Sequence[BuiltRevision], check: Check) -> None:
    """Let the catalog have the registered revisions of an interval, and none of the `points` beside them."""
    registered = revisions.registered_of_interval(pinned.id)
    places = {_place(each) for each in registered}
    for each in points:
        if _place(each) not in places:
            check()
            catalog.drop(each)
    point_at_registered(catalog, registered, check)
    completeness.follow_ledger(catalog.pipeline)


def _may_pass(error: Exception) -> bool:
    """Return whether a registration failed for what all of them need, or for another writer, and not for its own."""
    known = error if isinstance(error, TidemarkError) else translate(error)
    return isinstance(known, ServiceUnreachable | AnotherWriter)


def _why(error: Exception) -> str:
    known = error if isinstance(error, TidemarkError) else translate(error)
    return known.message if known is not None else root_cause(error)


def _point_in_order(
    catalog: Catalog,
    points: Sequence[BuiltRevision],
    with_other_rows: Collection[Place],
    check: Check,
    drops: Sequence[BuiltRevision] = (),
) -> None:
    """Drop partitions of an interval from the catalog, and point others at revisions, so that no row is doubled.

    Between two changes, rows that move to another table partition are missing for a reader: where rows may have moved,
    no partition gets its new rows while another one of the table still has its old ones. Of those `with_other_rows` in
    the catalog one of a table is swapped, so that readers never find the table without rows for nothing; the rest of
    them are dropped before, and added again after it.
    """
    first: dict[str, BuiltRevision] = {}
    cleared, others = [], []
    for each in points:
        if _place(each) not in with_other_rows:
            others.append(each)
        elif first.setdefault(each.table, each) is not each:
            cleared.append(each)
    check()
    # What is refused is refused before the first change: partitions that were dropped would stay missing. The revisions
    # of a table are alike: one declaration wrote them.
    for revision in {each.table: each for each in points}.values():
        catalog.prepare(revision)
    for stale in (*drops, *cleared):
        check()
        catalog.drop(stale)
        crash_point("partition_dropped")
    for revision in (*first.values(), *cleared, *others):
        check()
        catalog.point_at(revision)
        crash_point("partition_registered")


def _place(revision: BuiltRevision) -> Place:
    return revision.table, revision.partition


def _with_other_rows(registration: Registration, catalog: Catalog) -> set[Place]:
    """Return the partitions to point whose registered rows are others and may have moved between them.

    None where the same code has read late records: readers then find all rows that stay.
    """
    if revisions.is_of_registered_code(registration.pinned.id, registration.build):
        return set()
    hashes = {_place(each): each.content_hash for each in revisions.registered_of_interval(registration.pinned.id)}
    return {
        _place(each)
        for each in registration.changes.points
        # The catalog does not point at anything new in a table that is no longer declared: what it shows stays.
        if each.table in catalog.pipeline.tables and hashes.get(_place(each), each.content_hash) != each.content_hash
    }


def serve_registered(pipeline: Pipeline) -> None:
    """Make PostgreSQL serve what is registered, and log what that changed, or why a view was left as it is."""
    for line in follow.follow_ledger(pipeline):
        log_of(pipeline.name).log(logging.WARNING if follow.LEFT in line else logging.INFO, "%s", line)


def _without_undeclared(registration: Registration, catalog: Catalog) -> Registration:
    """Return the registration without points of tables that are no longer declared, unless they were made before.

    The ledger must not list as registered what the catalog does not point at.
    """
    changes, declared = registration.changes, catalog.pipeline.tables
    skipped = tuple(
        each for each in changes.points if each.table not in declared and catalog.location(each) != each.location
    )
    for each in skipped:
        log_of(catalog.pipeline.name).warning(
            "%s %s: revision %s is not registered, the table is no longer declared",
            each.table,
            each.partition,
            each.revision,
        )
    points = tuple(each for each in changes.points if each not in skipped)
    return replace(registration, changes=replace(changes, points=points, undeclared=skipped))


def finish_registrations(pipeline: Pipeline, catalog: Catalog) -> None:
    """Finish the registrations of the pipeline that were begun by publications which ended before their end.

    A registration whose publication still runs is left alone, and one that cannot be finished is logged: it must not
    hold up all others. The next publication of its own interval raises why.
    """
    for pinned in {begun.pinned.id: begun.pinned for begun in builds.begun_registrations(pipeline.name)}.values():
        try:
            with locks.publishing(pipeline.name, pinned.interval, locks.NO_WAIT) as check:
                finish_interval(pinned, catalog, check)
        except AnotherWriter as error:
            log_of(pipeline.name).warning("%s is left to whoever publishes it: %s", pinned.interval, error.message)
        except _FAILURES as error:
            if _may_pass(error):
                raise
            begun = "%s: its begun registration cannot be finished: %s"
            log_of(pipeline.name).warning(begun, pinned.interval, _why(error))


def finish_interval(pinned: PinnedInterval, catalog: Catalog, check: Check, later: int = 0) -> None:
    """Finish the interval's registrations that were begun; the caller holds its publishing lock.

    One that is refused is given up for the build `later`, which is published in its place; else it raises why.
    """
    for begun in builds.begun_registrations(pinned.pipeline):
        if begun.pinned.id != pinned.id:
            continue
        try:
            _finish(begun, catalog, check)
        except _FAILURES as error:
            if begun.build >= later or _may_pass(error) or builds.is_published(begun.build):
                raise
            # Not where the catalog cannot follow: readers would find its rows, and nobody would know.
            _follow_ledger(catalog, pinned, _without_undeclared(begun, catalog).changes.points, check)
            builds.give_up(begun.build)
            told = "%s: the begun registration of build %s is given up for build %s: %s"
            log_of(pinned.pipeline).warning(told, pinned.interval, begun.build, later, _why(error))


def point_at_registered(catalog: Catalog, registered: Iterable[BuiltRevision], check: Check) -> None:
    """Point the catalog at registered revisions of an interval again where somebody has pointed it elsewhere.

    What it points at, in a metastore that was put back from a copy, may be of other code.
    """
    declared = [each for each in registered if each.table in catalog.pipeline.tables]
    found = [(each, location) for each in declared if (location := catalog.location(each)) != each.location]
    _point_in_order(catalog, [each for each, _ in found], {_place(each) for each, location in found if location}, check)
    for each, location in found:
        log_of(catalog.pipeline.name).warning(
            "%s %s: repaired, the catalog pointed at %s", each.table, each.partition, location or "nothing"
        )


def _disagreement(catalog: Catalog, registered: BuiltRevision) -> str:
    """Return how the catalog or the registered files differ from the ledger, or that these lie outside of the lake.

    Empty when they agree, byte for byte. A lake that was moved moves on by runs of its intervals: its old place may go.
    """
    if not lake.is_in_lake(registered.location):
        return f"{registered.location} lies outside of the lake {lake.root()}"
    location = catalog.location(registered)
    if location != registered.location:
        return f"the catalog points at {location or 'nothing'}, registered is {registered.location}"
    wrong = [str(each) for each in damaged_files(registered.location, registered.files, deep=True)]
    return f"{registered.location}: {', '.join(wrong[:3])}" if wrong else ""
