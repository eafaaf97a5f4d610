"""Compare registered revisions with the catalog and the files. Starts no Spark and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from include import lake
from include.catalog import CatalogPartition, comparable_location, partitions, storage
from include.catalog.columns import column_changes, columns_of_json
from include.catalog.declared import is_to_be_anew
from include.catalog.renames import shown_names
from include.doctor.disagreement import MOVES_ASIDE, REPAIR, Disagreement, Kind
from include.errors import UsageError
from include.housekeeping.sweep import ORPHAN_AGE, attempt_of
from include.intervals.lake_of_ledger import TO_ITS_LAKE, revisions_elsewhere, why_unknown_stay
from include.lake.revision_files import damaged_files, described
from include.lake.scan import Folder, TableScan, scan_table
from include.ledger.intervals.states import RevisionState
from include.ledger.inventory import (
    KnownRevision,
    attempts_under_way,
    intervals_without_revisions,
    revisions_of,
    states_at,
)
from include.pipelines.spec import Pipeline
from include.times import Interval, format_time


def check_tables(pipeline: Pipeline, *, deep: bool) -> Iterator[Disagreement]:
    """Yield disagreements about a pipeline's tables. `deep` reads the registered files and compares their hashes."""
    catalog = partitions(pipeline.tables)
    elsewhere = revisions_elsewhere(pipeline)
    running = attempts_under_way(pipeline.name, datetime.now(UTC) - ORPHAN_AGE)
    for table in pipeline.tables:
        scan = scan_table(table)
        known: dict[str, KnownRevision] = {}
        registered: dict[str, KnownRevision] = {}
        for each in revisions_of(table):
            # What is known of its files is needed here alone, and is most of a revision.
            known[comparable_location(each.location)] = without_files = replace(each, files={})
            if each.state == RevisionState.REGISTERED and _counts(pipeline, each, catalog):
                registered[each.partition] = without_files
                yield from _files(pipeline, each, scan.revisions.get(each.location), deep=deep)
        yield from _catalog(pipeline, table, registered, known, catalog, set(running))
        yield from _directories(pipeline, table, scan, known, set(running), elsewhere)
        yield from _columns(pipeline, table)
    for interval in intervals_without_revisions(pipeline.name, pipeline.table):
        yield Disagreement(
            "interval without revisions",
            pipeline.name,
            f"interval {interval} is registered, but no revision of {pipeline.table} is",
            _again(pipeline, interval),
            interval=interval,
        )


def _counts(pipeline: Pipeline, revision: KnownRevision, catalog: Mapping[tuple[str, str], CatalogPartition]) -> bool:
    """Return whether readers are to find a registered revision of the pipeline's table.

    Another pipeline's, whose view the table was before, counts while the catalog points at it. Once it was dropped, it
    is not put back: readers would add up the rows of both.
    """
    entry = catalog.get((revision.table, revision.partition))
    is_read = entry is not None and comparable_location(entry.location) == comparable_location(revision.location)
    return is_read or revision.pipeline == pipeline.name


def _again(pipeline: Pipeline, interval: Interval) -> str:
    bounds = f"--from {format_time(interval.from_time)} --to {format_time(interval.to_time)}"
    return f"./tidemark interval {pipeline.name} {bounds}"


def _columns(pipeline: Pipeline, table: str) -> Iterator[Disagreement]:
    stored = storage(table)
    if stored is None:
        return
    columns = columns_of_json(stored.columns, stored.partition_columns)
    try:
        is_unused = is_to_be_anew(pipeline, table, stored)
    except UsageError as error:
        kind: Kind = "columns that files do not fit"
        yield Disagreement(kind, pipeline.name, error.message, error.remedy, "", table)
        return
    lag = column_changes(pipeline, table, columns, shown_names(pipeline, table, columns)).lag
    if is_unused or lag:
        yield Disagreement(
            "catalog lags the declaration",
            pipeline.name,
            f"lake.{table} in the catalog lags behind its declaration: "
            + ("nothing was ever registered in it, and it is to be made anew" if is_unused else lag),
            f"{REPAIR}, or the next interval's publication",
            "follow the declaration",
            table,
        )


def _files(pipeline: Pipeline, revision: KnownRevision, folder: Folder | None, *, deep: bool) -> Iterator[Disagreement]:
    on_disk = folder.files if folder is not None else None
    for damaged in damaged_files(revision.location, revision.files, deep=deep, on_disk=on_disk):
        extra = damaged.damage == "extra file"
        yield Disagreement(
            damaged.damage,
            pipeline.name,
            described(revision, damaged),
            REPAIR if extra else _again(pipeline, revision.interval),
            "move aside" if extra else "",
            revision.table,
            revision.partition,
            f"{revision.location}/{damaged.name}",
            interval=revision.interval,
        )


def _catalog(
    pipeline: Pipeline,
    table: str,
    registered: dict[str, KnownRevision],
    known: dict[str, KnownRevision],
    catalog: dict[tuple[str, str], CatalogPartition],
    running: set[int],
) -> Iterator[Disagreement]:
    for partition, revision in registered.items():
        entry = catalog.get((table, partition))
        if entry is not None and comparable_location(entry.location) == comparable_location(revision.location):
            continue
        where = f"{table} {partition}: revision {revision.revision} is registered in the ledger"
        other = known.get(comparable_location(entry.location)) if entry else None
        under_way = other is not None and _is_being_registered(other, running)
        again = f"attempt {other.attempt} is registering it now, or was killed at it: " if other else ""
        yield Disagreement(
            "catalog points elsewhere" if entry else "revision not in the catalog",
            pipeline.name,
            f"{where}, the catalog has {_named(entry.location, other)}" if entry else f"{where}, not in the catalog",
            again + _again(pipeline, revision.interval) if under_way else REPAIR,
            "" if under_way else "point the catalog",
            table,
            partition,
            revision.location,
            interval=revision.interval,
        )
    for (_, partition), entry in catalog.items():
        if entry.table != table or partition in registered:
            continue
        other = known.get(comparable_location(entry.location))
        under_way = other is not None and _is_being_registered(other, running)
        yield Disagreement(
            "partition unknown to the ledger",
            pipeline.name,
            f"{table} {partition}: the catalog has {_named(entry.location, other)}, the ledger registered nothing",
            _again(pipeline, other.interval) if under_way and other else REPAIR,
            "" if under_way else "drop from the catalog",
            table,
            partition,
            entry.location,
            interval=other.interval if other else None,
        )


def _is_being_registered(revision: KnownRevision, running: set[int]) -> bool:
    return revision.attempt in running and revision.state in (RevisionState.VALIDATED, RevisionState.REGISTERING)


def _named(location: str, known: KnownRevision | None) -> str:
    return f"revision {known.revision} ({known.state})" if known else f"{location or 'no location'}"


def _directories(
    pipeline: Pipeline,
    table: str,
    scan: TableScan,
    known: dict[str, KnownRevision],
    running: set[int],
    elsewhere: str,
) -> Iterator[Disagreement]:
    # A running attempt's are noted once it has built all.
    unknown = {
        location: folder
        for location, folder in {**scan.revisions, **scan.unfinished}.items()
        if comparable_location(location) not in known and attempt_of(location) not in running
    }
    # Removed revisions wait for the next housekeeping.
    removed = states_at(table, unknown)
    left = {location: folder for location, folder in unknown.items() if location not in removed}
    stay = _why_they_stay(pipeline, elsewhere) if left else ""
    for location, folder in left.items():
        yield Disagreement(
            "revision unknown to the ledger",
            pipeline.name,
            f"{table}: {lake.below_lake(location)} ({len(folder.files)} files) is in no attempt's revisions",
            stay or MOVES_ASIDE,
            "" if stay else "move aside",
            table,
            location=location,
        )
    for location, folder in scan.strays.items():
        if folder.files:
            yield Disagreement(
                "file outside of a revision",
                pipeline.name,
                f"{table}: {lake.below_lake(location)} lies outside of any revision",
                f"{REPAIR} moves it aside",
                "move aside",
                table,
                location=location,
            )


def _why_they_stay(pipeline: Pipeline, elsewhere: str) -> str:
    """Return why unknown directories are not moved, empty when they may be."""
    # They may be those revisions: where the lake was moved, all that is registered looks unknown.
    return f"{elsewhere}: {TO_ITS_LAKE}" if elsewhere else why_unknown_stay(pipeline)
