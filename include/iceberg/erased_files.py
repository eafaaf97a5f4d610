"""Remove every trace of erased files from Iceberg tables: snapshots, manifests with their columns' bounds, metadata.

A snapshot is the table as it was, so most snapshots since the first erased file name one. They are expired with their
tags. The snapshot that removed the last file names it too; if that is the head, a snapshot that changes no file takes
its place and states the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.iceberg.catalog import find, metadata_gone, opened, writing
from include.iceberg.commit import TRIES, folder_of, live_files, overwrite, roll_back_foreign
from include.iceberg.metadata_sweep import sweep_metadata
from include.iceberg.snapshot_retention import (
    PREVIOUS_VERSIONS,
    Expire,
    build_of_tag,
    delete_lists,
    previous_versions,
)
from include.lake.scan import scan_files
from include.ledger.erasures.former import tables_ever
from include.ledger.erasures.to_forget import NamesToForget
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline

_OWN_FILES = (".avro", ".metadata.json")


def tables_of(pipeline: Pipeline) -> list[str]:
    """Return the tables that are also Iceberg tables, or were while the pipeline declared it, or declared the table."""
    tables = sorted({*pipeline.tables, *tables_ever(pipeline.name)})
    return [table for table in tables if lake.exists(lake.uri("iceberg", table))]


def forget_files(pipeline: Pipeline, erased: Sequence[BuiltRevision], names: NamesToForget) -> int:
    """Expire every snapshot that names a file of the revisions, delete its metadata, and return how many there were.

    A snapshot that names a partition with an erased name is expired too. Repeating it changes nothing. Raises
    TidemarkError for a snapshot that a tag or branch of somebody else names, AnotherWriter, MetadataGone, and
    UsageError for a table that is not the pipeline's.
    """
    expired = 0
    tables = [table for table in tables_of(pipeline) if any(each.table == table for each in erased)]
    if not tables:
        return 0
    with writing(pipeline.name), opened() as catalog:
        for table in tables:
            folders = {f"{each.location}/" for each in erased if each.table == table}
            try:
                expired += _forget_in(catalog, pipeline, table, folders, names)
            except FileNotFoundError as error:
                raise metadata_gone(pipeline.name, table, error) from None
    # The store's clock may be ahead of this machine's.
    written = (file.newest for table in tables for file in scan_files("iceberg", table, "metadata").values())
    before = max([datetime.now(UTC), *written]) + timedelta(microseconds=1)
    swept = sweep_metadata(pipeline, before, dry_run=False, tables=tables)
    for why in swept.left:
        raise TidemarkError(
            f"{why}; the erasure is unfinished",
            remedy=f"./tidemark erase {pipeline.name} --resume, when it is mended",
            pipeline=pipeline.name,
        )
    return expired


def _forget_in(
    catalog: SqlCatalog, pipeline: Pipeline, table: str, folders: Collection[str], names: NamesToForget
) -> int:
    for _ in range(TRIES):
        stored = find(catalog, pipeline, table)
        if stored is None:
            return 0
        try:
            return _forget(roll_back_foreign(stored), folders, names, pipeline)
        except CommitFailedException:
            continue
    raise TidemarkError(
        f"somebody else keeps changing the Iceberg table {table}: the erasure is unfinished",
        remedy=f"let them end, then: ./tidemark erase {pipeline.name} --resume",
        pipeline=pipeline.name,
    )


def files_of_others(pipeline: Pipeline) -> Iterator[str]:
    """Yield the paths below the lake of files in the tables' folders that Tidemark did not write."""
    for table in tables_of(pipeline):
        at = lake.uri("iceberg", table)
        for file in lake.list_entries(at):
            if file.is_file and not (file.name.startswith("metadata/") and file.name.endswith(_OWN_FILES)):
                yield lake.below_lake(f"{at}/{file.name}")


def _forget(table: Table, folders: Collection[str], names: NamesToForget, pipeline: Pipeline) -> int:
    live = [file for file in live_files(table) if folder_of(file.file_path) in folders]
    if live:
        # Only a table that is no longer declared did not follow its intervals.
        _say_again(table, live, names)
    naming = _naming(table, folders, names)
    if table.metadata.current_snapshot_id in naming:
        _say_again(table, (), names)
        crash_point("erased_head_said_again")
        naming = _naming(table, folders, names)
    _check_nobody_keeps(table, naming, pipeline.name)
    if naming:
        with table.transaction() as transaction:
            Expire(transaction, table.metadata, list(naming.values()), through=False).commit()
        crash_point("erased_snapshots_expired")
        delete_lists(table, naming.values())
    _drop_previous_metadata(table, previous_versions(pipeline))
    return len(naming)


def _say_again(table: Table, without: Sequence[DataFile], names: NamesToForget) -> None:
    """Commit a snapshot without these files that states what the head states, and move the head's verdicts to it."""
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    summary = head.summary.additional_properties
    said = {key: names.text(value) for key, value in summary.items() if key.startswith("tidemark.")}
    tags = [
        name
        for name, each in table.refs().items()
        if each.snapshot_id == head.snapshot_id and build_of_tag(name) is not None
    ]
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=said)
        producer = overwrite(update) if without else update.merge_append()
        with producer as snapshot:
            for file in without:
                snapshot.delete_data_file(file)
        with ManageSnapshots(transaction) as references:
            for name in tags:
                references.create_tag(producer.snapshot_id, name)


def _naming(table: Table, folders: Collection[str], names: NamesToForget) -> dict[int, Snapshot]:
    """Return the snapshots that name an erased partition, or whose manifests name a file of the folders.

    They name a removed file too, with its columns' bounds.
    """
    seen: dict[str, bool] = {}

    def names_one(manifest: ManifestFile) -> bool:
        path = manifest.manifest_path
        if path not in seen:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            seen[path] = any(folder_of(each.data_file.file_path) in folders for each in entries)
        return seen[path]

    def tells(snapshot: Snapshot) -> bool:
        said = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        return any(names.named_in(each) for each in said.values())

    return {
        each.snapshot_id: each
        for each in table.snapshots()
        if tells(each) or any(map(names_one, each.manifests(table.io)))
    }


def _check_nobody_keeps(table: Table, naming: Collection[int], pipeline: str) -> None:
    for name, each in table.refs().items():
        if each.snapshot_id in naming and build_of_tag(name) is None:
            raise TidemarkError(
                f"the {each.snapshot_ref_type} {name} of the Iceberg table {'.'.join(table.name())} keeps a snapshot "
                "with erased rows; the erasure is unfinished",
                remedy=f"remove it from the table, then: ./tidemark erase {pipeline} --resume",
                pipeline=pipeline,
            )


def _drop_previous_metadata(table: Table, versions: str) -> None:
    """Drop the table's references to former metadata, whose files PyIceberg and the sweep then delete."""
    for kept in ("1", versions):
        with table.transaction() as transaction:
            transaction.set_properties({PREVIOUS_VERSIONS: kept})
        crash_point("erased_metadata_dropped")
