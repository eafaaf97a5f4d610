"""Expire the snapshots that need files of retired revisions, before these are removed.

A file is needed by the snapshots from the one that added it to the one that removed it; the latter's manifests name
it, and the sequence number of the former. The head is never expired, nor is what a tag or branch of others names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from include.errors import MetadataGone, UsageError
from include.iceberg.catalog import find, opened, writing
from include.iceberg.commit import folder_of, live_files
from include.iceberg.snapshot_retention import Expire, delete_lists, protected
from include.iceberg.statement import is_own
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline


@dataclass(frozen=True)
class Expiry:
    """What became of snapshots that need files which are to be removed."""

    expired: int = 0
    """How many snapshots were expired."""
    held: frozenset[str] = frozenset()
    """Locations of revisions whose files must stay, because a snapshot that stays needs them, or may."""
    left: tuple[str, ...] = ()
    """What was not looked at and why, by table."""


@dataclass(frozen=True)
class _Life:
    """The commits between which a file was in the table: sequence numbers, the last one not included."""

    path: str
    added: int
    removed: int


@dataclass
class _Plan:
    expired: dict[int, Snapshot] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)


def release(pipeline: Pipeline, due: Sequence[BuiltRevision], *, dry_run: bool) -> Expiry:
    """Expire the snapshots that need files of revisions that are to be removed; with `dry_run` only count them.

    Files of a table that is another's, or whose metadata is gone, are held: what needs them is not known.
    """
    expired, held, left = 0, set[str](), list[str]()
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            if not (of_table := [each for each in due if each.table == table]):
                continue
            try:
                plan = _plan(catalog, pipeline, table, of_table)
            except (MetadataGone, UsageError) as error:
                left.append(f"{error.message} — {error.remedy}")
                held |= {each.location for each in of_table}
                continue
            if plan is not None:
                stored, planned = plan
                expired, held = expired + len(planned.expired), held | planned.held
                if planned.expired and not dry_run:
                    _expire(stored, planned.expired.values())
    return Expiry(expired, frozenset(held), tuple(left))


def _plan(
    catalog: SqlCatalog, pipeline: Pipeline, table: str, due: Sequence[BuiltRevision]
) -> tuple[Table, _Plan] | None:
    stored = find(catalog, pipeline, table)
    if stored is None:
        return None
    plan = _Plan()
    folders = {f"{each.location}/": each.location for each in due}
    for label in sorted({each.partition.rsplit("interval=", 1)[-1] for each in due}):
        paths = (file.file_path for file in live_files(stored, label))
        plan.held |= {folders[folder] for path in paths if (folder := folder_of(path)) in folders}
    lives = list(_lives(stored))
    wanted = [life for life in lives if folders.get(folder_of(life.path), "") not in {"", *plan.held}]
    plan.expired = _needing(stored.snapshots(), lives, wanted)
    if not plan.expired.keys().isdisjoint(protected(stored)):
        return stored, _Plan(held={each.location for each in due})
    return stored, plan


def _needing(snapshots: Sequence[Snapshot], lives: Sequence[_Life], wanted: Sequence[_Life]) -> dict[int, Snapshot]:
    """Return the snapshots that need one of the wanted files.

    If one of them removed other files, the snapshots that need these are included: nothing else records that removal.
    """
    needing: dict[int, Snapshot] = {}
    queue = list(wanted)
    while queue:
        life = queue.pop()
        for each in snapshots:
            number = each.sequence_number or 0
            if life.added <= number < life.removed and each.snapshot_id not in needing:
                needing[each.snapshot_id] = each
                queue += [other for other in lives if other.removed == number]
    return needing


def _lives(table: Table) -> Iterator[_Life]:
    for snapshot in table.snapshots():
        if not is_own(snapshot) or snapshot.summary is None or not int(snapshot.summary["deleted-data-files"] or 0):
            continue
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED:
                    yield _Life(entry.data_file.file_path, entry.sequence_number or 0, snapshot.sequence_number or 0)


def _expire(table: Table, snapshots: Collection[Snapshot]) -> None:
    with table.transaction() as transaction:
        Expire(transaction, table.metadata, list(snapshots), through=False).commit()
    delete_lists(table, snapshots)
