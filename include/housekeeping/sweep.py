"""The sweep: deletes files that the ledger no longer names, and old leftovers of jobs that were killed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from include import lake
from include.catalog import comparable_location
from include.housekeeping import compaction, replaced
from include.housekeeping.in_flight import InFlight
from include.lake.scan import COMPACTED, Folder, TableScan, scan_files, scan_landing, scan_table_parts
from include.ledger.archive import landing_files
from include.ledger.held_locks import Check
from include.ledger.intervals.states import RevisionState
from include.ledger.inventory import attempts_under_way, states_at
from include.pipelines.spec import Pipeline
from include.times import parse_duration

ORPHAN_AGE = timedelta(hours=1)
"""Files that a live job may still be writing are younger than this, or their attempt is known by its lock."""

NEVER = datetime.min.replace(tzinfo=UTC)
ALL_DUE = datetime.max.replace(tzinfo=UTC)
"""For what is due however new it is: whatever some clock says, and also what this very run has replaced."""

QUARANTINE_FILE = re.compile(r"([0-9a-f]{8}-\d{9}(-\d+)?|\d{4}-\d{2}-\d{2}-[0-9a-f]{12,32})(-e\d+)*\.parquet")
"""Names that micro-batches (earlier ones with four more digits), compaction and erasures give to quarantine files."""


@dataclass
class Done:
    """What a run did, or would do."""

    pipeline: str
    dry_run: bool
    check: Check
    """Raises when the lock on removing and moving the pipeline's files was lost."""
    landing: dict[str, int] = field(default_factory=lambda: {"micro_batches": 0, "files": 0, "bytes": 0})
    compacted: dict[str, int] = field(default_factory=lambda: {"days": 0, "files": 0, "rows": 0})
    revisions: dict[str, int] = field(default_factory=lambda: {"revisions": 0, "bytes": 0})
    snapshots: dict[str, int] = field(default_factory=lambda: {"expired": 0})
    """Snapshots of Iceberg tables, which needed those revisions' files."""
    metadata: list[str] = field(default_factory=list)
    """Manifests, lists and metadata of Iceberg tables that no kept snapshot needs, below the lake."""
    generations: dict[str, int] = field(default_factory=lambda: {"generations": 0, "files": 0, "bytes": 0})
    """Checkpoints of older generations."""
    logs: dict[str, int] = field(default_factory=lambda: {"files": 0, "bytes": 0})
    """Logs of drivers that ended."""
    deleted: dict[str, int] = field(default_factory=lambda: {"files": 0, "bytes": 0})
    """Bytes and files that left the disk, whatever the reason."""
    set_aside: dict[str, int] = field(default_factory=lambda: {"files": 0, "bytes": 0})
    """Files that were moved out of landing and quarantine, and are deleted later."""
    put_back: list[str] = field(default_factory=list)
    """Files that had been set aside and that the ledger, restored from an older copy, names; below the lake."""
    orphans: list[str] = field(default_factory=list)
    """Files that no commit names, below the lake."""
    kept: list[str] = field(default_factory=list)
    """What is due and was left, and why."""

    def may_change(self) -> bool:
        """Return whether this run changes things: asked before each change. Raises when the lock was lost."""
        if not self.dry_run:
            self.check()
        return not self.dry_run

    def as_json(self) -> dict[str, Any]:
        """Return the form that `--json` prints."""
        return {name: value for name, value in vars(self).items() if name != "check"}


@dataclass(frozen=True, kw_only=True)
class Times:
    """Moments before which things are due."""

    now: datetime
    landing: datetime
    revisions: datetime
    orphans: datetime
    unknown: datetime
    """For files that the ledger does not know: as for orphans, or never while another ledger may have known them."""
    unknown_revisions: datetime
    """For directories and metadata of tables that the ledger does not know: also never while it knows revisions
    outside of the lake, for they may be these."""
    replaced: datetime
    """For landing files whose rows are read from revisions."""
    set_aside: datetime
    """For files that were set aside: as for replaced ones, or never while another ledger may have known them."""

    @classmethod
    def of(
        cls, pipeline: Pipeline, older_than: str | None, *, keep_unknown_files: bool, keep_unknown_revisions: bool
    ) -> Times:
        """Return the times from the pipeline's declared retention; `older_than` replaces all of its durations."""
        now, declared = datetime.now(UTC), pipeline.retention
        override = None if older_than is None else parse_duration(older_than)

        def before(age: timedelta) -> datetime:
            return now - (age if override is None else override)

        orphans, replaced_before = before(ORPHAN_AGE), before(parse_duration(declared.replaced))
        if replaced_before == now:
            replaced_before = ALL_DUE
        unknown = NEVER if keep_unknown_files else orphans
        return cls(
            now=now,
            landing=before(parse_duration(declared.landing)),
            revisions=before(parse_duration(declared.revisions)),
            orphans=orphans,
            unknown=unknown,
            unknown_revisions=NEVER if keep_unknown_revisions else unknown,
            replaced=replaced_before,
            set_aside=NEVER if keep_unknown_files else replaced_before,
        )

    @classmethod
    def all_due(cls) -> Times:
        """Return the times by which everything is due that is not needed."""
        now = datetime.now(UTC)
        return cls(
            now=now,
            landing=now,
            revisions=now,
            orphans=now,
            unknown=now,
            unknown_revisions=now,
            replaced=ALL_DUE,
            set_aside=ALL_DUE,
        )


def sweep_landing(
    pipeline: Pipeline, times: Times, done: Done, merged: Collection[str] = (), *, nobody_replays: bool = False
) -> bool:
    """Delete landing files whose rows revisions have long held, and set files aside that the ledger does not name.

    Folders with files that this run has `merged` are the ledger's, however new they are. What was set aside long ago is
    deleted. `nobody_replays`: the caller holds the lock on replaying, which would look like a replay's. Returns False
    when all was left, because an attempt may be reading it.
    """
    if running := attempts_under_way(pipeline.name, times.orphans):
        attempt, interval = next(iter(running.items()))
        line = f"landing files: attempt {attempt} of {interval} may be reading them; the next run deletes them"
        done.kept += [] if line in done.kept else [line]
        return False
    in_flight = InFlight.of(pipeline.name)
    if nobody_replays:
        in_flight = replace(in_flight, is_replaying=False)
    for folders in scan_landing(pipeline.name):
        _sweep_folders([each for each in folders if each.has_content()], merged, in_flight, times, done)
        for emptied in (each for each in folders if not each.has_content()):
            if in_flight.has_committed(emptied.location):
                _delete(emptied, done)
    for folder_parts in (("landing", pipeline.name, COMPACTED), ("quarantine", pipeline.name)):
        loose = {
            location: file
            for location, file in scan_files(*folder_parts).items()
            if folder_parts[0] == "landing"
            or QUARANTINE_FILE.fullmatch(location.removeprefix(f"{lake.uri(*folder_parts)}/"))
        }
        known = {file.path for file in landing_files.files_at(pipeline.name, [lake.below_lake(at) for at in loose])}
        for location, file in loose.items():
            if lake.below_lake(location) not in known and in_flight.has_left(file, times.unknown):
                done.orphans.append(lake.below_lake(location))
                _let_go({location: file.bytes}, {location}, times, done)
    _let_go(compaction.leftovers(pipeline.name) | _half_merged(pipeline.name, in_flight, times), (), times, done)
    _sweep_set_aside(pipeline, times, done)
    if not done.dry_run:
        for part in ("landing", "quarantine"):
            # The live driver may be about to write to a folder that it has made since it took its lease.
            lake.delete_empty_folders(lake.uri(part, pipeline.name), min(times.unknown, in_flight.since))
    return True


def _half_merged(pipeline: str, in_flight: InFlight, times: Times) -> dict[str, int]:
    """Return quarantine files that drivers did not finish, as location to bytes: whole records that no reader sees."""
    hidden = scan_files("quarantine", pipeline, hidden=True)
    return {
        location: file.bytes
        for location, file in hidden.items()
        if QUARANTINE_FILE.fullmatch(location.rsplit("/", 1)[-1].removeprefix("."))
        and in_flight.has_left(file, times.unknown)
    }


def _sweep_folders(
    folders: Sequence[Folder], merged: Collection[str], in_flight: InFlight, times: Times, done: Done
) -> None:
    """Let go of what is due in the folders, each of a micro-batch or a replay."""
    files = landing_files.files_at(
        done.pipeline, [lake.below_lake(f"{f.location}/{name}") for f in folders for name in f.files]
    )
    known = {file.path for file in files}
    needed = {file.path for file in files if file.removed_at is None or file.removed_at >= times.replaced}
    for folder in folders:
        if _is_known(folder, known) or _is_known(folder, merged):
            _sweep_folder(folder, needed, known, times, done)
        elif in_flight.has_left(folder, times.unknown):
            done.orphans += [lake.below_lake(folder.location)] if folder.files else []
            _sweep_folder(folder, set(), (), times, done)


def _is_known(folder: Folder, paths: Collection[str]) -> bool:
    return any(lake.below_lake(f"{folder.location}/{name}") in paths for name in folder.files)


def _sweep_folder(folder: Folder, needed: set[str], known: Collection[str], times: Times, done: Done) -> None:
    """Let go of the files in a micro-batch's folder that were removed or compacted; of the folder when none is needed.

    A folder that the ledger does not know was left by a killed driver, or compacted whole.
    """
    files = {f"{folder.location}/{name}": size for name, size in folder.files.items()}
    unknown = {at for at in files if lake.below_lake(at) not in known}
    stay = {at for at in files if lake.below_lake(at) in needed} | (unknown if times.unknown == NEVER else set())
    if not stay and not unknown:
        _delete(folder, done)
        return
    _let_go({at: size for at, size in files.items() if at not in stay}, unknown, times, done)
    if not stay:
        _delete(Folder(folder.location, bytes=folder.bytes - sum(files.values())), done)


def _let_go(files: Mapping[str, int], unknown: Collection[str], times: Times, done: Done) -> None:
    """Delete files, named by location with their bytes; set aside those that the ledger does not know."""
    for location, size in sorted(files.items()):
        stays = location in unknown and times.replaced != ALL_DUE
        counts = done.set_aside if stays else done.deleted
        counts["files"] += 1
        counts["bytes"] += size
        if not done.may_change():
            continue
        if stays:
            replaced.set_aside(done.pipeline, location, times.now)
        else:
            lake.delete_file(location)


def _sweep_set_aside(pipeline: Pipeline, times: Times, done: Done) -> None:
    for location, moment in replaced.runs(pipeline.name).items():
        if moment < times.set_aside:
            files = {entry.name: entry.bytes for entry in lake.list_entries(location) if not entry.is_folder}
            _delete(Folder(location, files, sum(files.values())), done)


def sweep_tables(
    pipeline: Pipeline, times: Times, pointed_at: set[str], done: Done, others: Collection[str] = ()
) -> None:
    """Delete directories of removed revisions and of killed attempts, in the declared tables and in others."""
    running = attempts_under_way(pipeline.name, times.orphans)
    for table in (*pipeline.tables, *others):
        for scan in scan_table_parts(table):
            _sweep_revisions(table, scan, running, times, pointed_at, done)
        if not done.dry_run:
            lake.delete_empty_folders(lake.uri("tables", table), times.orphans)


def _sweep_revisions(
    table: str, scan: TableScan, running: Collection[int], times: Times, pointed_at: set[str], done: Done
) -> None:
    states = states_at(table, scan.revisions)
    for location, folder in {**scan.revisions, **scan.unfinished}.items():
        state = states.get(location)
        orphan = state is None and folder.newest < times.unknown_revisions and attempt_of(location) not in running
        if comparable_location(location) in pointed_at or not (state == RevisionState.REMOVED or orphan):
            continue
        if orphan:
            done.orphans.append(lake.below_lake(location))
        _delete(folder, done)


def attempt_of(location: str) -> int:
    """Return the attempt in the name of a revision or staging directory; -1 when there is none."""
    number = re.search(r"-(\d+)$", location)
    return int(number[1]) if number else -1


def _delete(folder: Folder, done: Done) -> None:
    done.deleted["files"] += len(folder.files)
    done.deleted["bytes"] += folder.bytes
    if done.may_change():
        lake.delete(folder.location)
