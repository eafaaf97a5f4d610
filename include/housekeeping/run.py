"""Housekeeping of a pipeline: landing that tables have replaced, old revisions, closed days, leftovers.

What readers rely on is changed in the ledger first and deleted afterwards; a run that was killed in between is
finished by the next. Nothing that the catalog points at and nothing that is not older than its time is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from include import catalog
from include.crash_points import crash_point
from include.errors import AnotherWriter, TidemarkError
from include.housekeeping import compaction
from include.housekeeping.sweep import Done, Times, sweep_landing, sweep_tables
from include.ledger.archive import landing
from include.ledger.database import engine, session, unreachable
from include.ledger.intervals.revisions import RETIRED
from include.ledger.models import Revision
from include.ledger.streams.incarnations import closed
from include.offsets import intersection
from include.pipelines.spec import Pipeline
from include.spark import driver_folders
from include.times import Interval


def keep_house(
    pipeline: Pipeline, *, dry_run: bool, older_than: str | None = None, progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Do what is due for a pipeline; with `dry_run` only count it.

    Raises AnotherWriter when another run is at it, ServiceUnreachable.
    """
    times = Times.of(pipeline, older_than)
    done = Done(pipeline.name, dry_run)
    with _alone(pipeline.name):
        pointed_at = {catalog.place(each.location) for each in catalog.partitions(pipeline.tables).values()}
        _retire_landing(pipeline, times, done)
        _compact(pipeline, times, done)
        _retire_revisions(pipeline, times, pointed_at, done)
        crash_point("housekeeping_marked")
        sweep_landing(pipeline, times, done)
        sweep_tables(pipeline, times, pointed_at, done)
    if not dry_run and (folders := driver_folders.sweep()):
        progress(f"removed the temporary folders of {len(folders)} Spark drivers that were killed")
    for line in done.kept:
        progress(f"{pipeline.name}: left: {line}")
    return done.as_json()


@contextmanager
def _alone(pipeline: str) -> Iterator[None]:
    key = func.hashtext(f"housekeeping:{pipeline}")
    try:
        with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if not connection.scalar(select(func.pg_try_advisory_lock(key))):
                raise AnotherWriter("another housekeeping is under way", remedy="wait for it to end", pipeline=pipeline)
            try:
                yield
            finally:
                connection.execute(select(func.pg_advisory_unlock(key)))
    except OperationalError as error:
        raise unreachable(error) from error


def _retire_landing(pipeline: Pipeline, times: Times, done: Done) -> None:
    """Mark archived landing files whose rows lie, undamaged, in registered revisions."""
    if closed(pipeline.name):
        # Tables tell rows by offset alone: those of a topic that was created again could be taken for another's.
        done.kept.append("landing: one of its topics was deleted and created again, its files stay")
        return
    batches = landing.settled_batches(pipeline.name, times.landing, (landing.ARCHIVED,))
    ranges = [each for parts in batches.values() for each in parts if len(each)]
    for holding in landing.holdings(pipeline.name, pipeline.table, ranges) if ranges else []:
        if damage := holding.damage():
            done.kept.append(f"landing of {Interval(holding.from_time, holding.to_time)}: {damage}")
            for batch, parts in list(batches.items()):
                if any(intersection(a, b) for a in parts for b in holding.ranges):
                    del batches[batch]
    files = landing.files_of(batches, (landing.ARCHIVED,))
    done.landing = {"micro_batches": len(batches), "files": len(files), "bytes": sum(file.bytes for file in files)}
    if batches and not done.dry_run:
        landing.mark_removed(batches)


def _compact(pipeline: Pipeline, times: Times, done: Done) -> None:
    for day in compaction.closed_days(pipeline.name, times.now):
        try:
            if not done.dry_run:
                compaction.compact(pipeline.name, day)
        except TidemarkError as error:
            done.kept.append(error.message)
            continue
        done.compacted["days"] += 1
        done.compacted["files"] += len(day.paths)
        done.compacted["rows"] += sum(file.rows for file in day.files)


def _retire_revisions(pipeline: Pipeline, times: Times, pointed_at: set[str], done: Done) -> None:
    """Mark revisions that ceased to matter long enough ago as removed."""
    with session() as ledger:
        due = ledger.scalars(
            select(Revision)
            .where(
                Revision.table_name.in_(pipeline.tables),
                Revision.state.in_({*RETIRED, "built", "validated"}),
                func.coalesce(Revision.retired_at, Revision.built_at) < times.revisions,
            )
            .order_by(Revision.built_at)
        ).all()
        for row in due:
            if catalog.place(row.location) in pointed_at:
                where = f"{row.table_name} {row.table_partition}"
                done.kept.append(f"{where}: the catalog points at revision {row.id} ({row.state}); ./tidemark doctor")
                continue
            done.revisions["revisions"] += 1
            done.revisions["bytes"] += sum(described["bytes"] for described in row.files.values())
            if not done.dry_run:
                row.state = "removed"
