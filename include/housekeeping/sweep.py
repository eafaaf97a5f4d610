"""Deletes what the ledger no longer names, and what jobs that were killed left behind, once it is old enough."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from include import lake
from include.catalog import place
from include.lake.scan import COMPACTED, Folder, below_lake, scan_files, scan_landing, scan_table
from include.ledger.archive import landing
from include.ledger.database import session
from include.ledger.models import Attempt, IntervalRow, Revision
from include.ledger.streams import writers
from include.pipelines.spec import Pipeline
from include.times import Interval, parse_duration

ORPHAN_AGE = timedelta(hours=1)
"""Nothing that a living job may still be writing is this old; an interval's task ends by then."""

QUARANTINE_FILE = re.compile(r"([0-9a-f]{8}-\d{9}-\d{4}|\d{4}-\d{2}-\d{2}-[0-9a-f]{12,32})\.parquet")
"""Names that micro-batches and compaction give to quarantine files."""


@dataclass
class Done:
    """What a run did, or would do."""

    pipeline: str
    dry_run: bool
    landing: dict[str, int] = field(default_factory=lambda: {"micro_batches": 0, "files": 0, "bytes": 0})
    compacted: dict[str, int] = field(default_factory=lambda: {"days": 0, "files": 0, "rows": 0})
    revisions: dict[str, int] = field(default_factory=lambda: {"revisions": 0, "bytes": 0})
    deleted: dict[str, int] = field(default_factory=lambda: {"files": 0, "bytes": 0})
    """Bytes and files that left the disk, whatever the reason."""
    orphans: list[str] = field(default_factory=list)
    """What no commit ever mentioned, below the lake."""
    kept: list[str] = field(default_factory=list)
    """What is due and was left, and why."""

    def as_json(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Times:
    """Moments before which things are due."""

    now: datetime
    landing: datetime
    revisions: datetime
    orphans: datetime

    @classmethod
    def of(cls, pipeline: Pipeline, older_than: str | None) -> Times:
        """From the pipeline's declared retention; `older_than` replaces all of its durations."""
        now = datetime.now(UTC)
        override = parse_duration(older_than) if older_than is not None else None
        ages = [
            parse_duration(pipeline.retention.landing) if override is None else override,
            parse_duration(pipeline.retention.revisions) if override is None else override,
            ORPHAN_AGE if override is None else override,
        ]
        return cls(now, *(now - age for age in ages))


def attempts_under_way(pipeline: str, since: datetime) -> dict[int, Interval]:
    """Attempts that began after `since` and have not ended: they may be reading and writing."""
    with session() as ledger:
        rows = ledger.execute(
            select(Attempt.id, IntervalRow.from_time, IntervalRow.to_time)
            .join(IntervalRow, IntervalRow.id == Attempt.interval_id)
            .where(IntervalRow.pipeline == pipeline, Attempt.ended_at.is_(None), Attempt.started_at > since)
        )
        return {key: Interval(begin, end) for key, begin, end in rows}


def sweep_landing(pipeline: Pipeline, times: Times, done: Done) -> None:
    """Delete landing and quarantine files that the ledger no longer names, or never did."""
    if running := attempts_under_way(pipeline.name, times.orphans):
        attempt, interval = next(iter(running.items()))
        done.kept.append(
            f"landing files: attempt {attempt} of {interval} may be reading them; the next run deletes them"
        )
        return
    writer = writers.live_writer(pipeline.name)
    # What was written since the living driver took its lease may belong to its micro-batch.
    due = min(times.orphans, writer.acquired_at) if writer else times.orphans
    folders = scan_landing(pipeline.name).values()
    rows = landing.files_at(pipeline.name, [below_lake(f"{f.location}/{name}") for f in folders for name in f.files])
    lying = {row.path for row in rows if row.removed_at is None}
    gone = {row.path for row in rows} - lying
    for folder in folders:
        _sweep_folder(folder, lying, gone, due, done)
    for folder_parts in (("landing", pipeline.name, COMPACTED), ("quarantine", pipeline.name)):
        files = {
            location: file
            for location, file in scan_files(*folder_parts).items()
            if folder_parts[0] == "landing"
            or QUARANTINE_FILE.fullmatch(location.removeprefix(f"{lake.uri(*folder_parts)}/"))
        }
        known = {file.path for file in landing.files_at(pipeline.name, [below_lake(at) for at in files])}
        for location, file in files.items():
            if below_lake(location) not in known and file.newest < due:
                done.orphans.append(below_lake(location))
                _delete(file, done)
    if not done.dry_run:
        for part in ("landing", "quarantine"):
            lake.prune_empty(lake.uri(part, pipeline.name), due)


def _sweep_folder(folder: Folder, lying: set[str], gone: set[str], due: datetime, done: Done) -> None:
    """A micro-batch's folder: what is removed or was compacted goes, all of it when nothing is left.

    A folder of which the ledger knows nothing is a killed driver's, or was compacted whole.
    """
    paths = {below_lake(f"{folder.location}/{name}"): name for name in folder.files}
    committed = not paths.keys().isdisjoint(lying | gone)
    if not committed and folder.newest >= due:
        return
    if not committed and folder.files:
        done.orphans.append(below_lake(folder.location))
    if paths.keys().isdisjoint(lying):
        _delete(folder, done)
        return
    for path in sorted(paths.keys() - lying):
        name = paths[path]
        done.deleted["files"] += 1
        done.deleted["bytes"] += folder.files[name]
        if not done.dry_run:
            lake.delete_file(f"{folder.location}/{name}")


def sweep_tables(pipeline: Pipeline, times: Times, pointed_at: set[str], done: Done) -> None:
    """Delete directories of removed revisions, and those of killed attempts."""
    running = attempts_under_way(pipeline.name, times.orphans)
    for table in pipeline.tables:
        scan = scan_table(table)
        with session() as ledger:
            wanted = select(Revision.location, Revision.state).where(
                Revision.table_name == table, Revision.location.in_(scan.revisions)
            )
            states = dict(ledger.execute(wanted).tuples().all())
        for location, folder in {**scan.revisions, **scan.unfinished}.items():
            state = states.get(location)
            orphan = state is None and folder.newest < times.orphans and attempt_of(location) not in running
            if place(location) in pointed_at or not (state == "removed" or orphan):
                continue
            if orphan:
                done.orphans.append(below_lake(location))
            _delete(folder, done)
        if not done.dry_run:
            lake.prune_empty(lake.uri("tables", table), times.orphans)


def attempt_of(location: str) -> int:
    """The attempt in the name of a revision or staging directory; -1 when there is none."""
    found = re.search(r"-(\d+)$", location)
    return int(found[1]) if found else -1


def _delete(folder: Folder, done: Done) -> None:
    done.deleted["files"] += len(folder.files)
    done.deleted["bytes"] += folder.bytes
    if not done.dry_run:
        lake.delete(folder.location)
