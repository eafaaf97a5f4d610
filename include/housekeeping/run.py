"""Housekeeping of a pipeline: landing that tables have replaced, old revisions and generations, closed days, leftovers.

What readers rely on is changed in the ledger first and deleted afterwards, files of landing and quarantine days later,
for a copy of PostgreSQL names them. The next run finishes one that was killed in between. Nothing that the catalog
points at, and nothing younger than its retention, is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from include import catalog, lake
from include.crash_points import crash_point
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.housekeeping import compaction, replaced
from include.housekeeping.leftovers import left_tables
from include.housekeeping.old_generations import sweep_checkpoints, sweep_logs
from include.housekeeping.sweep import ORPHAN_AGE, Done, Times, sweep_landing, sweep_tables
from include.intervals.lake_of_ledger import (
    TO_ITS_LAKE,
    check_lake,
    kept_checkpoints,
    revisions_elsewhere,
)
from include.lake.revision_files import damage_of
from include.ledger import inventory, quarantine
from include.ledger.archive import holdings, landing_files, removal
from include.ledger.archive.decoders import decoders_of
from include.ledger.archive.holdings import Holding
from include.ledger.held_locks import NO_WAIT, Check, held_by, held_lock
from include.ledger.intervals.revisions import decoders_of_content
from include.ledger.intervals.states import RETIRED
from include.ledger.inventory import KnownRevision, attempts_under_way
from include.ledger.streams.incarnations import closed
from include.monitor.text import quantity
from include.offsets import Fate, OffsetRange, intersection, merged
from include.pipelines.spec import Pipeline
from include.spark import driver_folders
from include.times import Interval, format_time
from include.waiting import wait_for

_LOOK_AGAIN = 5.0
"""Seconds between two looks at the attempts that are waited for."""


def keep_house(
    pipeline: Pipeline,
    *,
    dry_run: bool,
    older_than: str | None = None,
    patience: timedelta = timedelta(0),
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Do what is due for a pipeline and return what was done; with `dry_run` only count it.

    Landing files that an attempt may be reading are left: waits as long as `patience` for those under way to end.
    Raises the error of `check_lake`, AnotherWriter when another run is under way, ServiceUnreachable.
    """
    check_lake(pipeline)
    if not dry_run:
        _await_attempts(pipeline, patience)
    left = left_tables(pipeline)
    of_others, elsewhere = kept_checkpoints(pipeline), revisions_elsewhere(pipeline, left)
    times = Times.of(pipeline, older_than, keep_unknown_files=bool(of_others), keep_unknown_revisions=bool(elsewhere))
    with holding_files(pipeline.name) as check:
        done = Done(pipeline.name, dry_run, check)
        done.kept += [f"{lake.below_lake(each)}: {why}" for each, why in of_others.items()]
        if elsewhere:
            done.kept.append(f"tables: {elsewhere}: none that it does not know here is deleted; {TO_ITS_LAKE}")
        if not dry_run:
            done.put_back += replaced.put_back(pipeline.name)
        pointed_at = catalog.pointed_at([*pipeline.tables, *left])
        _retire_landing(pipeline, times, done)
        _retire_revisions(pipeline, left, times, pointed_at, done)
        crash_point("housekeeping_marked")
        sweep_landing(pipeline, times, done)
        sweep_tables(pipeline, times, pointed_at, done, left)
        _sweep_open_tables(pipeline, times, done)
        sweep_checkpoints(pipeline, times, done, of_others)
        sweep_logs(pipeline, times, done)
        # Last, because it takes longest: where it never ends, all else is still deleted each day.
        if merged_files := _compact(pipeline, times, done):
            # Other tools find merged records twice until the files from which they were merged have gone.
            sweep_landing(pipeline, times, done, merged_files)
    if not dry_run and (folders := driver_folders.sweep()):
        progress(f"removed the temporary folders of {len(folders)} Spark drivers that were killed")
    for line in done.kept:
        progress(f"{pipeline.name}: left: {line}")
    return done.as_json()


def _await_attempts(pipeline: Pipeline, patience: timedelta) -> None:
    """Wait until the attempts that are under way now have ended, or patience has: others may have begun by then."""
    since = datetime.now(UTC) - ORPHAN_AGE
    found = attempts_under_way(pipeline.name, since).keys()
    wait_for(
        lambda: found.isdisjoint(attempts_under_way(pipeline.name, since)),
        seconds=patience.total_seconds(),
        every=_LOOK_AGAIN,
    )


def put_back(pipeline: str, progress: Callable[[str], None]) -> None:
    """Put back the merged files that the ledger, restored from an older copy, names; one under way does so."""
    try:
        with holding_files(pipeline):
            back = replaced.put_back(pipeline)
    except AnotherWriter as error:
        progress(f"{pipeline}: merged files are left: {error.message}")
        return
    if back:
        progress(f"{pipeline}: {quantity(len(back), 'merged file')} put back, which this ledger names")


@contextmanager
def holding_files(pipeline: str) -> Iterator[Check]:
    """Hold the lock on removing and moving the pipeline's files during the block.

    Yields a function that raises when the lock was lost: call it before each change. Raises AnotherWriter at once while
    another one holds it.
    """
    name = f"housekeeping:{pipeline}"
    with held_lock(name) as lock:
        if lock is None:
            raise AnotherWriter(
                f"another housekeeping is under way{held_by(name)}", remedy="wait for it to end", pipeline=pipeline
            )
        yield lock.check


def _retire_landing(pipeline: Pipeline, times: Times, done: Done) -> None:
    """Mark archived landing files whose rows lie, undamaged, in registered revisions of this lake."""
    if closed(pipeline.name):
        # Tables identify rows by offset alone: those of a recreated topic could be taken for older ones.
        done.kept.append("landing: one of its topics was deleted and created again, its files stay")
        return
    # An interval holds the micro-batches of several portions; its revisions are looked at once.
    damages: dict[int, str] = {}
    for batches in removal.settled_batches(pipeline.name, times.landing, (Fate.ARCHIVED,)):
        _keep_damaged(pipeline, batches, damages, done)
        files = landing_files.files_of(batches, (Fate.ARCHIVED,))
        done.landing["micro_batches"] += len(batches)
        done.landing["files"] += len(files)
        done.landing["bytes"] += sum(file.bytes for file in files)
        if batches and done.may_change():
            removal.mark_removed(pipeline.name, batches)


def _keep_damaged(
    pipeline: Pipeline, batches: dict[int, list[OffsetRange]], damages: dict[int, str], done: Done
) -> None:
    """Take those of the micro-batches out whose rows do not surely lie, undamaged, in revisions of this lake."""
    ranges = merged(each for parts in batches.values() for each in parts if len(each))
    for holding in holdings.holdings(pipeline.name, pipeline.table, ranges):
        if why := _elsewhere(holding) or _read_otherwise(pipeline, holding) or _damage(holding, damages):
            line = f"landing of {Interval(holding.from_time, holding.to_time)}: {why}"
            done.kept += [] if line in done.kept else [line]
            for batch, parts in list(batches.items()):
                if any(intersection(a, b) for a in parts for b in holding.ranges):
                    del batches[batch]


def _damage(holding: Holding, known: dict[int, str]) -> str:
    """Return the damage of an interval's revisions, empty for none; they are read whole, so `known` keeps it."""
    if holding.interval_id not in known:
        known[holding.interval_id] = damage_of(holding.revisions, records=holding.archived)
    return known[holding.interval_id]


def _elsewhere(holding: Holding) -> str:
    """Return which revision lies in another lake, which may go without this one being asked; empty for none."""
    outside = (each for each in holding.revisions if not lake.is_in_lake(each.location))
    return next((f"{each.location}, its registered revision, lies outside of the lake" for each in outside), "")


def _read_otherwise(pipeline: Pipeline, holding: Holding) -> str:
    """Return that other code read the offsets from Kafka than landed them; empty if none did.

    By that code a record may have another fate. What it found invalid has no rows in its revisions, and without its
    landing file it would be nowhere in the archive.
    """
    landed = set(decoders_of(pipeline.name, holding.ranges))
    builds = decoders_of_content(holding.interval_id)
    if not builds or any(landed <= versions for versions in builds):
        return ""
    bounds = f"--from {format_time(holding.from_time)} --to {format_time(holding.to_time)}"
    return (
        "its registered build read Kafka with other code than landed it; where both give the same rows, "
        f"./tidemark interval {pipeline.name} {bounds} --source archive lets it go"
    )


def _compact(pipeline: Pipeline, times: Times, done: Done) -> set[str]:
    """Merge the files of closed days, and return the paths of those that were merged, below the lake."""
    merged_files: set[str] = set()
    # The sweep leaves all files while an attempt may read them: other tools would find merged records twice until then.
    running = attempts_under_way(pipeline.name, times.orphans)
    for day in compaction.closed_days(pipeline.name, times.now):
        if running and day.fate == Fate.QUARANTINED:
            attempt, interval = next(iter(running.items()))
            done.kept.append(
                f"quarantine of {day.day}: attempt {attempt} of {interval} is under way; the next run merges"
            )
            continue
        try:
            if not done.dry_run:
                _merge(pipeline, day, done.check)
                merged_files.update(day.paths)
        except ServiceUnreachable:
            # The lock may be lost.
            raise
        except TidemarkError as error:
            done.kept.append(error.message)
            continue
        done.compacted["days"] += 1
        done.compacted["files"] += len(day.paths)
        done.compacted["rows"] += sum(file.rows for file in day.files)
    return merged_files


def _merge(pipeline: Pipeline, day: compaction.Day, check: Check) -> None:
    if day.fate != Fate.QUARANTINED:
        compaction.compact(pipeline.name, day, check)
        return
    # A replay reads the files of the records that it has selected, for minutes; the sweep sets merged ones aside.
    with quarantine.deciding(pipeline.name, NO_WAIT):
        compaction.compact(pipeline.name, day, check)


def _retire_revisions(pipeline: Pipeline, left: Sequence[str], times: Times, pointed_at: set[str], done: Done) -> None:
    """Mark revisions as removed that have not been needed for long enough; also those of tables that were left."""
    due = []
    # Between two tasks of a run under Airflow no process works on its attempt.
    running = attempts_under_way(pipeline.name, min(times.orphans, times.now - ORPHAN_AGE))
    for revision in inventory.revisions_no_longer_needed([*pipeline.tables, *left], times.revisions):
        if revision.attempt in running and revision.state not in RETIRED:
            interval = running[revision.attempt]
            line = f"revisions: attempt {revision.attempt} of {interval} is under way; what it has built stays"
            done.kept += [] if line in done.kept else [line]
        elif catalog.comparable_location(revision.location) in pointed_at:
            where = f"{revision.table} {revision.partition}"
            named = f"revision {revision.revision} ({revision.state})"
            done.kept.append(f"{where}: the catalog points at {named}; ./tidemark doctor")
        else:
            due.append(revision)
    due = _released(pipeline, due, done)
    done.revisions["revisions"] += len(due)
    done.revisions["bytes"] += sum(file["bytes"] for revision in due for file in revision.files.values())
    if done.may_change():
        inventory.mark_revisions_removed(due)


def _sweep_open_tables(pipeline: Pipeline, times: Times, done: Done) -> None:
    """Delete Iceberg's manifests, lists and metadata that no kept snapshot needs, as old as replaced revisions."""
    if not pipeline.iceberg_tables:
        return
    from include.iceberg.metadata_sweep import sweep_metadata

    done.check()
    unneeded = sweep_metadata(pipeline, min(times.revisions, times.unknown_revisions), dry_run=done.dry_run)
    done.kept += unneeded.left
    done.metadata += [lake.below_lake(each.location) for each in unneeded.files]
    done.deleted["files"] += len(unneeded.files)
    done.deleted["bytes"] += sum(each.bytes for each in unneeded.files)


def _released(pipeline: Pipeline, due: list[KnownRevision], done: Done) -> list[KnownRevision]:
    """Expire the Iceberg snapshots that need files of the revisions; return those whose files no snapshot needs."""
    if not pipeline.iceberg_tables or not due:
        return due
    from include.iceberg.revision_release import release

    expiry = release(pipeline, due, dry_run=done.dry_run)
    done.snapshots["expired"] += expiry.expired
    done.kept += expiry.left
    crash_point("snapshots_expired")
    for each in due:
        if each.location in expiry.held:
            done.kept.append(f"{each.table} {each.partition}: a snapshot of its Iceberg table needs {each.revision}")
    return [each for each in due if each.location not in expiry.held]
