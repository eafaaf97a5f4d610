"""PyIceberg's SQL catalog, whose commits neither read a table's metadata twice nor copy its unchanged parts.

Otherwise a commit's cost grows with the table's snapshots: PyIceberg reads all of them before a commit and again within
it, and copies each with its tag. A table's logs, of snapshots and of metadata, are kept in the order of time and
without gaps, too, as the format demands and PyIceberg does not ensure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier

_KNOWN = (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
"""Updates for which this module knows the snapshots and tags that they touch."""

Entry = TypeVar("Entry", SnapshotLogEntry, MetadataLogEntry)


class Catalog(SqlCatalog):
    """PyIceberg's catalog with cheaper reads and commits."""

    _last_read: tuple[str, Table] | None = None

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if location is None or self._last_read is None or self._last_read[0] != location:
            read = super()._convert_orm_to_iceberg(orm_table)
            self._last_read = read.metadata_location, read
        # A metadata file is never rewritten, and what was read of it is never changed: tables get new objects instead.
        known = self._last_read[1]
        return Table(known.name(), known.metadata, known.metadata_location, known.io, self)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        known = current_table.metadata
        updates = tuple(_not_before(known.last_updated_ms, each) for each in updates)
        if all(isinstance(each, _KNOWN) for each in updates):
            for requirement in requirements:
                requirement.validate(known)
            touched = _touched(known, updates)
            thin = Table(current_table.name(), touched, current_table.metadata_location, current_table.io, self)
            staged = super()._update_and_stage_table(thin, table_identifier, (), updates)
            staged.metadata = _with_the_rest(known, touched, staged.metadata)
        else:
            staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        staged.metadata = _with_logs_in_order(known, staged.metadata)
        return staged


def _touched(known: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """Return the metadata with only the head and the snapshots, tags and log entries that the updates touch."""
    removed = {id_ for each in updates if isinstance(each, RemoveSnapshotsUpdate) for id_ in each.snapshot_ids}
    named = {each.snapshot_id for each in updates if isinstance(each, SetSnapshotRefUpdate)}
    names = {"main", *(each.ref_name for each in updates if isinstance(each, SetSnapshotRefUpdate))}
    ids = {known.current_snapshot_id, *removed, *named}
    return known.model_copy(
        update={
            # The child of a removed snapshot loses its parent.
            "snapshots": [each for each in known.snapshots if {each.snapshot_id, each.parent_snapshot_id} & ids],
            "snapshot_log": [each for each in known.snapshot_log if each.snapshot_id in removed],
            "refs": {name: each for name, each in known.refs.items() if name in names or each.snapshot_id in removed},
        }
    )


def _with_the_rest(known: TableMetadata, touched: TableMetadata, updated: TableMetadata) -> TableMetadata:
    """Return the updated metadata with what was left out of it, in the order in which it was."""
    left_out = {each.snapshot_id for each in known.snapshots} - {each.snapshot_id for each in touched.snapshots}
    ids = {each.snapshot_id: each for each in updated.snapshots}
    snapshots = [
        ids.pop(each.snapshot_id, each)
        for each in known.snapshots
        if each.snapshot_id in left_out or each.snapshot_id in ids
    ]
    removed = {each.snapshot_id for each in touched.snapshots} - {each.snapshot_id for each in updated.snapshots}
    return updated.model_copy(
        update={
            "snapshots": [*snapshots, *ids.values()],
            "snapshot_log": [
                *(each for each in known.snapshot_log if each.snapshot_id not in removed),
                *updated.snapshot_log,
            ],
            "refs": {**{name: each for name, each in known.refs.items() if name not in touched.refs}, **updated.refs},
        }
    )


def _not_before(known_ms: int, update: TableUpdate) -> TableUpdate:
    """Return an update whose snapshot, if it adds one, is not older than that time."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= known_ms:
        return update
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": known_ms}))


def _with_logs_in_order(known: TableMetadata, updated: TableMetadata) -> TableMetadata:
    """Return the updated metadata with no time in its logs before an earlier one, and no gap in its snapshots' log.

    A clock may step back, but Java's readers refuse a table whose times do, by more than a minute. Where a snapshot was
    removed, the entries before it go as well, or readers would take an older one for the table at its time.
    """
    removed = {each.snapshot_id for each in known.snapshots} - {each.snapshot_id for each in updated.snapshots}
    is_gone = [each.snapshot_id in removed for each in known.snapshot_log]
    after_last = max((number for number, gone in enumerate(is_gone, 1) if gone), default=0)
    snapshots = _in_order(updated.snapshot_log[is_gone[:after_last].count(False) :])
    metadata = _in_order(updated.metadata_log)
    times = (*(each.timestamp_ms for each in snapshots), *(each.timestamp_ms for each in metadata))
    return updated.model_copy(
        update={
            "snapshot_log": snapshots,
            "metadata_log": metadata,
            "last_updated_ms": max(known.last_updated_ms, updated.last_updated_ms, *times),
        }
    )


def _in_order(log: Sequence[Entry]) -> list[Entry]:
    times = accumulate((each.timestamp_ms for each in log), max)
    return [
        each if each.timestamp_ms == at else each.model_copy(update={"timestamp_ms": at})
        for each, at in zip(log, times, strict=True)
    ]
