"""Registered revisions against the catalog and the files of the tables. Starts no Spark and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlalchemy import func, select

from include import catalog as catalog_state
from include.catalog import CatalogPartition
from include.doctor.disagreement import REPAIR, Disagreement
from include.housekeeping.sweep import ORPHAN_AGE, attempt_of, attempts_under_way
from include.lake.revision_files import damaged_files
from include.lake.scan import Folder, TableScan, below_lake, scan_table
from include.ledger.database import session
from include.ledger.models import IntervalRange, IntervalRow, Revision
from include.pipelines.spec import Pipeline
from include.times import Interval, format_time


def check_tables(pipeline: Pipeline, *, deep: bool) -> Iterator[Disagreement]:
    """Disagreements about a pipeline's tables. `deep` reads the registered files and compares their hashes."""
    catalog = catalog_state.partitions(pipeline.tables)
    running = attempts_under_way(pipeline.name, datetime.now(UTC) - ORPHAN_AGE)
    for table in pipeline.tables:
        scan = scan_table(table)
        with session() as ledger:
            revisions = ledger.scalars(select(Revision).where(Revision.table_name == table)).all()
        registered = {row.table_partition: row for row in revisions if row.state == "registered"}
        for row in registered.values():
            yield from _files(pipeline, row, scan.revisions.get(row.location), deep=deep)
        known = {catalog_state.place(row.location): row for row in revisions if row.state != "removed"}
        yield from _catalog(pipeline, table, registered, known, catalog, set(running))
        yield from _directories(
            pipeline, table, scan, known, {catalog_state.place(row.location) for row in revisions}, set(running)
        )
    yield from _intervals(pipeline)


def _again(pipeline: str, interval_id: int) -> str:
    with session() as ledger:
        row = ledger.get_one(IntervalRow, interval_id)
    interval = f"--from {format_time(row.from_time)} --to {format_time(row.to_time)}"
    return f"./tidemark interval {pipeline} {interval}"


def _files(pipeline: Pipeline, row: Revision, folder: Folder | None, *, deep: bool) -> Iterator[Disagreement]:
    found = folder.files if folder is not None else None
    for damaged in damaged_files(row.location, row.files, deep=deep, found=found):
        extra = damaged.damage == "extra file"
        yield Disagreement(
            damaged.damage,
            pipeline.name,
            f"{row.table_name} {row.table_partition}: {damaged} in {row.location}",
            REPAIR if extra else _again(pipeline.name, row.interval_id),
            "move aside" if extra else "",
            row.table_name,
            row.table_partition,
            f"{row.location}/{damaged.name}",
        )


def _catalog(
    pipeline: Pipeline,
    table: str,
    registered: dict[str, Revision],
    known: dict[str, Revision],
    catalog: dict[tuple[str, str], CatalogPartition],
    running: set[int],
) -> Iterator[Disagreement]:
    for partition, row in registered.items():
        entry = catalog.get((table, partition))
        if entry is not None and catalog_state.place(entry.location) == catalog_state.place(row.location):
            continue
        where = f"{table} {partition}: revision {row.id} is registered in the ledger"
        other = known.get(catalog_state.place(entry.location)) if entry else None
        under_way = other is not None and other.state == "validated" and other.attempt_id in running
        again = f"attempt {other.attempt_id} is registering it now, or was killed at it: " if other else ""
        yield Disagreement(
            "catalog points elsewhere" if entry else "revision not in the catalog",
            pipeline.name,
            f"{where}, the catalog has {_named(entry.location, other)}" if entry else f"{where}, not in the catalog",
            again + _again(pipeline.name, row.interval_id) if under_way else REPAIR,
            "" if under_way else "point the catalog",
            table,
            partition,
            row.location,
        )
    for (_, partition), entry in catalog.items():
        if entry.table != table or partition in registered:
            continue
        other = known.get(catalog_state.place(entry.location))
        under_way = other is not None and other.state == "validated" and other.attempt_id in running
        yield Disagreement(
            "partition unknown to the ledger",
            pipeline.name,
            f"{table} {partition}: the catalog has {_named(entry.location, other)}, the ledger registered nothing",
            _again(pipeline.name, other.interval_id) if under_way and other else REPAIR,
            "" if under_way else "drop from the catalog",
            table,
            partition,
            entry.location,
        )


def _named(location: str, known: Revision | None) -> str:
    return f"revision {known.id} ({known.state})" if known else f"{location or 'no location'}"


def _directories(
    pipeline: Pipeline,
    table: str,
    scan: TableScan,
    known: dict[str, Revision],
    ever_known: set[str],
    running: set[int],
) -> Iterator[Disagreement]:
    noted = known.keys() | ever_known
    for location, folder in {**scan.revisions, **scan.unfinished}.items():
        # Removed ones wait for the next housekeeping; those of a running attempt are noted when it has built all.
        if catalog_state.place(location) in noted or attempt_of(location) in running:
            continue
        yield Disagreement(
            "revision unknown to the ledger",
            pipeline.name,
            f"{table}: {below_lake(location)} ({len(folder.files)} files) is in no attempt's revisions",
            f"{REPAIR} moves it aside, ./tidemark housekeeping deletes it",
            "move aside",
            table,
            location=location,
        )
    for location, folder in scan.strays.items():
        if folder.files:
            yield Disagreement(
                "file outside of a revision",
                pipeline.name,
                f"{table}: {below_lake(location)} lies outside of any revision",
                f"{REPAIR} moves it aside",
                "move aside",
                table,
                location=location,
            )


def _intervals(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Intervals said to be registered, with archived records, without a registered archive revision."""
    revisions = select(Revision.interval_id).where(
        Revision.state == "registered", Revision.table_name == pipeline.table, Revision.interval_id == IntervalRow.id
    )
    archived = (
        select(func.sum(func.coalesce(IntervalRange.archived, 0)))
        .where(IntervalRange.interval_id == IntervalRow.id)
        .scalar_subquery()
    )
    with session() as ledger:
        rows = ledger.scalars(
            select(IntervalRow)
            .where(IntervalRow.pipeline == pipeline.name, IntervalRow.state == "registered")
            .where(~revisions.exists(), archived > 0)
            .order_by(IntervalRow.from_time)
        ).all()
    for row in rows:
        yield Disagreement(
            "interval without revisions",
            pipeline.name,
            f"interval {Interval(row.from_time, row.to_time)} is registered, but no revision of {pipeline.table} is",
            _again(pipeline.name, row.id),
        )
