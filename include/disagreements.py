"""Where ledger, catalog and files disagree: every kind with one line and what to do about it.

The ledger says what is committed and registered; the catalog and the lake have to agree. Nothing here starts
Spark or changes anything; `include/mending.py` does what can be done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import func, select

from include import catalog_state, lake
from include.catalog_state import CatalogPartition
from include.housekeeping import ORPHAN_AGE, attempt_of, attempts_under_way
from include.intervals import Interval, format_time
from include.lake_scan import COMPACTED, Folder, TableScan, below_lake, scan_files, scan_landing, scan_table
from include.ledger import landing, writers
from include.ledger.database import session
from include.ledger.models import IntervalRange, IntervalRow, LandingFile, MicroBatch, Revision
from include.pipelines.spec import Pipeline
from include.revision_files import Damage, damaged_files

Kind = (
    Damage
    | Literal[
        "revision not in the catalog",
        "catalog points elsewhere",
        "partition unknown to the ledger",
        "revision unknown to the ledger",
        "file outside of a revision",
        "interval without revisions",
        "landing file missing",
        "landing file of wrong size",
        "landing unknown to the ledger",
    ]
)

Mend = Literal["", "move aside", "point the catalog", "drop from the catalog", "read from revisions"]
"""How `--repair` mends a disagreement; empty: it cannot."""

REPAIR = "./tidemark doctor --repair"


@dataclass(frozen=True)
class Disagreement:
    """One thing that two of ledger, catalog and files say differently."""

    kind: Kind
    pipeline: str
    what: str
    remedy: str
    mend: Mend = ""
    table: str = ""
    partition: str = ""
    location: str = ""
    """What is to be moved, or where the ledger's revision lies."""
    micro_batch: int = 0


def find(pipeline: Pipeline, *, deep: bool) -> Iterator[Disagreement]:
    """All disagreements of a pipeline. `deep` reads the registered files and compares their hashes."""
    catalog = catalog_state.partitions(pipeline.tables)
    running = attempts_under_way(pipeline.name, datetime.now(UTC) - ORPHAN_AGE)
    for table in pipeline.tables:
        scan = scan_table(table)
        with session() as ledger:
            revisions = ledger.scalars(select(Revision).where(Revision.table_name == table)).all()
        registered = {row.table_partition: row for row in revisions if row.state == "registered"}
        for row in registered.values():
            yield from _files(pipeline, row, scan.revisions.get(row.location), deep=deep)
        known = {row.location: row for row in revisions if row.state != "removed"}
        yield from _catalog(pipeline, table, registered, known, catalog, set(running))
        yield from _directories(pipeline, table, scan, known, {row.location for row in revisions}, set(running))
    yield from _intervals(pipeline)
    yield from _landing(pipeline)


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
        if entry is not None and entry.location == row.location:
            continue
        where = f"{table} {partition}: revision {row.id} is registered in the ledger"
        other = known.get(entry.location) if entry else None
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
        other = known.get(entry.location)
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
    for location, folder in {**scan.revisions, **scan.unfinished}.items():
        # Removed ones wait for the next housekeeping; those of a running attempt are noted when it has built all.
        if location in known or location in ever_known or attempt_of(location) in running:
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


def _landing(pipeline: Pipeline) -> Iterator[Disagreement]:
    lying: dict[str, int] = {}
    writer = writers.live_writer(pipeline.name)
    since = writer.acquired_at if writer else datetime.now(UTC)
    folders = scan_landing(pipeline.name)
    for folder in folders.values():
        lying |= {below_lake(f"{folder.location}/{name}"): size for name, size in folder.files.items()}
    loose = {
        **scan_files("landing", pipeline.name, COMPACTED),
        **{at: f for at, f in scan_files("quarantine", pipeline.name).items() if at.count("/") == _depth(pipeline)},
    }
    lying |= {below_lake(location): file.bytes for location, file in loose.items()}
    with session() as ledger:
        noted = ledger.execute(
            select(LandingFile.path, func.max(LandingFile.bytes), func.min(LandingFile.micro_batch_id))
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(MicroBatch.pipeline == pipeline.name, LandingFile.removed_at.is_(None))
            .group_by(LandingFile.path)
            .order_by(LandingFile.path)
        ).all()
    lost = [row for row in noted if lying.get(row[0]) != row[1]]
    settled = set(landing.settled_batches(pipeline.name, datetime.now(UTC), (landing.ARCHIVED,))) if lost else set()
    for path, size, micro_batch in lost:
        yield _lost(pipeline, path, size, lying.get(path), micro_batch, settled)
    ever = {row.path for row in landing.files_at(pipeline.name, list(lying))}
    unknown = [file for location, file in loose.items() if below_lake(location) not in ever]
    for folder in folders.values():
        strange = [name for name in folder.files if below_lake(f"{folder.location}/{name}") not in ever]
        if len(strange) == len(folder.files):
            # A batch of quarantined records alone leaves a folder without files behind.
            unknown += [folder] if folder.files else []
        else:
            unknown += [
                Folder(f"{folder.location}/{name}", {name: 0}, folder.files[name], folder.newest) for name in strange
            ]
    for each in unknown:
        if each.newest < since:
            yield Disagreement(
                "landing unknown to the ledger",
                pipeline.name,
                f"{below_lake(each.location)} belongs to no committed micro-batch",
                f"{REPAIR} moves it aside, ./tidemark housekeeping deletes it",
                "move aside",
                location=each.location,
            )


def _depth(pipeline: Pipeline) -> int:
    return lake.uri("quarantine", pipeline.name).count("/") + 1


def _lost(
    pipeline: Pipeline, path: str, size: int, found: int | None, micro_batch: int, settled_batches: set[int]
) -> Disagreement:
    row = landing.files_at(pipeline.name, [path])[0]
    settled = row.outcome == landing.ARCHIVED and micro_batch in settled_batches
    detail = "is missing" if found is None else f"has {found} bytes, {size} when it was committed"
    return Disagreement(
        "landing file missing" if found is None else "landing file of wrong size",
        pipeline.name,
        f"{path} ({row.outcome}, {row.rows} rows of micro-batch {micro_batch}) {detail}",
        f"{REPAIR}: its rows are read from the registered revisions from then on"
        if settled
        else "restore the file; its rows are in no registered revision",
        "read from revisions" if settled else "",
        location=path,
        micro_batch=micro_batch,
    )
