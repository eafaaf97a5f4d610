"""Commit an interval: one snapshot over the files of its registered revisions, where they lie.

Partition values are set here: PyIceberg reads none from the folders of files in Hive's layout, and would note null.
Files carry no field ids, so readers find columns by the table's name mapping. What others commit is rolled back first:
the table holds registered rows only, as its snapshots state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots, UpdateSnapshot, _OverwriteFiles
from pyiceberg.typedef import Record

from include.catalog import DATABASE
from include.catalog.renames import shown_columns
from include.errors import TidemarkError
from include.iceberg.catalog import OWNER, find, metadata_gone
from include.iceberg.field_ids import numbers_of
from include.iceberg.schema import create, follow_declaration, metadata_for_file
from include.iceberg.snapshot_retention import PREVIOUS_VERSIONS, Expire, delete_lists, previous_versions, surplus
from include.iceberg.statement import (
    BUILD,
    INTERVAL,
    Statement,
    completeness_of,
    is_own,
    last_own,
    may_state,
    put_completeness,
)
from include.ledger.held_locks import Check
from include.ledger.intervals.findings import IcebergSnapshot
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline

TRIES = 5
"""How often an interval is committed again because somebody else changed the table meanwhile."""

_SMALL = 32 * 1024
"""Bytes of a manifest; one that names a single file has 8 KB."""

_MERGED_AT_ONCE = 100
"""How many small manifests are merged into one."""

_PROPERTIES = {
    # A commit costs the interval's files, not one manifest for every interval before.
    "commit.manifest-merge.enabled": "true",
    # Nor a large manifest rewritten whenever small ones are merged: one of some 600 files is left alone.
    "commit.manifest.target-size-bytes": str(256 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",
    # Its files are registered in Hive, too: engines that drop the table, or expire snapshots, leave them.
    "gc.enabled": "false",
}


@dataclass(frozen=True)
class Difference:
    """How the head of a table differs from the wanted files of one interval, or of all."""

    missing: Mapping[str, BuiltRevision]
    """Registered files, by their path, with their revisions."""
    unknown: tuple[DataFile, ...]
    """Files in the table that no registered revision has."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown)

    def rows_there(self, wanted: Sequence[BuiltRevision]) -> int:
        """Return how many rows the table has where these revisions are wanted."""
        missing = sum(each.files[path.rsplit("/", 1)[1]]["rows"] for path, each in self.missing.items())
        return sum(each.rows for each in wanted) - missing + sum(each.record_count for each in self.unknown)


def ensure_table(catalog: SqlCatalog, pipeline: Pipeline, table: str) -> Table:
    """Return the Iceberg table, created if it is missing. Raises UsageError when it is not the pipeline's."""
    if (stored := find(catalog, pipeline, table)) is not None:
        return _with_properties(stored, pipeline)
    said = {**_properties(pipeline), OWNER: pipeline.name}
    try:
        return create(catalog, table, shown_columns(pipeline, table), numbers_of(pipeline, table), said)
    except TableAlreadyExistsError:
        return ensure_table(catalog, pipeline, table)


def _properties(pipeline: Pipeline) -> dict[str, str]:
    return {**_PROPERTIES, PREVIOUS_VERSIONS: previous_versions(pipeline)}


def _with_properties(table: Table, pipeline: Pipeline) -> Table:
    """Return a table that earlier code or another declaration may have made, with the properties that new ones get."""
    wanted = _properties(pipeline)
    if lacking := {name: value for name, value in wanted.items() if table.properties.get(name) != value}:
        with table.transaction() as transaction:
            transaction.set_properties(lacking)
    return table


def commit_interval(
    catalog: SqlCatalog,
    pipeline: Pipeline,
    table: str,
    statement: Statement,
    wanted: Sequence[BuiltRevision],
    said: Mapping[str, str] | None = None,
    check: Check = lambda: None,
) -> IcebergSnapshot:
    """Make a table hold the wanted revisions' files, and no others, of the statement's interval, by one snapshot.

    Repeating it changes nothing. A build that changes nothing gets its tag on the existing snapshot. The same commit
    sets `said`, the table's properties of completeness; none while the table lacks rows of other intervals. `check`
    raises when the caller is no longer alone with the interval: it is asked before each try. Raises UsageError when the
    table is not the pipeline's or cannot follow its declaration, and MetadataGone.
    """
    for _ in range(TRIES):
        try:
            stored = roll_back_foreign(ensure_table(catalog, pipeline, table))
            # After the table was read: if another publication of the interval commits from now on, this one's fails.
            check()
            follow_declaration(stored, pipeline.name, shown_columns(pipeline, table), numbers_of(pipeline, table))
            head = stored.current_snapshot()
            difference = difference_of(stored, wanted, statement.label)
            own = statement.attempt.pinned.id, difference.rows_there(wanted)
            told = may_state(stored, pipeline.name, said, *own) if said is not None else None
            if difference or (head is None or not _is_told(stored, statement, wanted)):
                _commit(stored, statement, wanted, difference, told, pipeline.retention.snapshots)
            elif statement.tag not in stored.refs() or (told is not None and told != completeness_of(stored)):
                _tag(stored, head, statement, told)
        except CommitFailedException:
            continue
        tagged = stored.refs()[statement.tag].snapshot_id
        return IcebergSnapshot(f"{DATABASE}.{table}", tagged, statement.tag, stored.metadata_location)
    raise TidemarkError(
        f"somebody else keeps changing the Iceberg table {DATABASE}.{table}",
        remedy="let them end, then run the interval again",
        pipeline=pipeline.name,
    )


def difference_of(table: Table, wanted: Sequence[BuiltRevision], label: str | None = None) -> Difference:
    """Compare the head of a table with what is wanted, of one interval or of all. Raises MetadataGone."""
    expected = {f"{each.location}/{name}": each for each in wanted for name in sorted(each.files)}
    there = {file.file_path: file for file in live_files(table, label)}
    missing = {path: revision for path, revision in expected.items() if path not in there}
    return Difference(missing, tuple(file for path, file in there.items() if path not in expected))


def live_files(table: Table, label: str | None = None) -> Iterator[DataFile]:
    """Yield the data files at the head of a table, of one interval or of all. Raises MetadataGone."""
    scan = table.scan() if label is None else table.scan(row_filter=_equal_to("interval", label))
    try:
        tasks = [*scan.plan_files()]
    except FileNotFoundError as error:
        raise metadata_gone(table.properties.get(OWNER, ""), table.name()[-1], error) from None
    for task in tasks:
        yield task.file


def folder_of(path: str) -> str:
    """Return the folder of a data file, with a slash at its end."""
    return path.rsplit("/", 1)[0] + "/"


def _equal_to(column: str, value: str) -> BooleanExpression:
    """Return the filter; PyIceberg's class takes its arguments in a way that its types do not declare."""
    made: BooleanExpression = EqualTo(column, value)  # type: ignore
    return made


def overwrite(update: UpdateSnapshot) -> _OverwriteFiles:
    """Return the snapshot's producer that removes files, with an evaluator of its own for each manifest.

    PyIceberg's threads share one, and each would look at its manifest by the bounds of another one: a file to remove is
    then not found, and the commit fails.
    """
    producer = update.overwrite()
    shared = producer._build_manifest_evaluator
    producer._build_manifest_evaluator = lambda spec_id: lambda manifest: shared(spec_id)(manifest)  # type: ignore
    return producer


def roll_back_foreign(table: Table) -> Table:
    """Return the table at its last snapshot below which all are Tidemark's; what others committed is dropped."""
    kept, head = last_own(table), table.current_snapshot()
    if head is None or (kept is not None and kept.snapshot_id == head.snapshot_id):
        return table
    if kept is None:
        table.manage_snapshots().remove_branch("main").commit()
    else:
        table.manage_snapshots().set_current_snapshot(kept.snapshot_id).commit()
    return table


def _is_told(table: Table, statement: Statement, wanted: Sequence[BuiltRevision]) -> bool:
    """Return whether the table has a snapshot of the interval; one with files in the head has, or had."""
    if statement.tag in table.refs() or any(each.files for each in wanted):
        return True
    return any(each.summary and each.summary[INTERVAL] == statement.label for each in table.snapshots())


def _tag(table: Table, head: Snapshot, statement: Statement, said: Mapping[str, str] | None) -> None:
    with table.transaction() as transaction:
        if statement.tag not in table.refs():
            with ManageSnapshots(transaction) as references:
                references.create_tag(head.snapshot_id, statement.tag)
        if said is not None:
            put_completeness(transaction, said)


def _commit(
    table: Table,
    statement: Statement,
    wanted: Sequence[BuiltRevision],
    difference: Difference,
    said: Mapping[str, str] | None,
    keep: int,
) -> None:
    known, old = table.metadata, surplus(table, keep - 1)
    _thin(table, old)
    names = [field.name for field in table.spec().fields]
    added = [_data_file(table, path, revision, names) for path, revision in difference.missing.items()]
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=statement.summary(wanted))
        append = update.merge_append if _has_many_small_manifests(table) else update.fast_append
        producer = overwrite(update) if difference.unknown else append()
        with producer as snapshot:
            for file in difference.unknown:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
        with ManageSnapshots(transaction) as references:
            references.create_tag(producer.snapshot_id, statement.tag)
        if said is not None:
            put_completeness(transaction, said)
        if old:
            Expire(transaction, known, old, through=True).commit()
    delete_lists(table, old)


def restore_tag(pipeline: Pipeline, table: Table, statement: Statement, wanted: Sequence[BuiltRevision]) -> None:
    """Give a table the snapshot and tag of a verdict again, after somebody has expired them.

    If the snapshot still exists, it gets its tag; else one that changes no file states the same at the head.
    """
    for each in table.snapshots():
        if is_own(each) and each.summary and each.summary[BUILD] == str(statement.build):
            table.manage_snapshots().create_tag(each.snapshot_id, statement.tag).commit()
            return
    _commit(table, statement, wanted, Difference({}, ()), None, pipeline.retention.snapshots)


def _thin(table: Table, old: Sequence[Snapshot]) -> None:
    """Keep only the head and old snapshots of the table in memory: PyIceberg copies all that it knows with each step.

    The commit itself is applied to the stored metadata. PyIceberg's own retries on top of another's commit are off: the
    caller notices such a commit, and compares again.
    """
    known, head = table.metadata, table.current_snapshot()
    # Only the ids of the old snapshots are needed; their summaries are the larger part.
    going = [each.model_copy(update={"summary": None}) for each in old]
    update = {
        "snapshots": [*going, *([head] if head is not None else [])],
        "snapshot_log": [],
        "refs": {name: each for name, each in known.refs.items() if name == "main"},
        "properties": {**known.properties, "commit.retry.num-retries": "0"},
    }
    table.metadata = known.model_copy(update=update)


def _has_many_small_manifests(table: Table) -> bool:
    """Return whether it is time to merge: PyIceberg alone would rewrite a nearly full manifest every few commits."""
    head = table.current_snapshot()
    manifests = head.manifests(table.io) if head is not None else []
    return sum(each.manifest_length < _SMALL for each in manifests) >= _MERGED_AT_ONCE


def _data_file(table: Table, path: str, revision: BuiltRevision, names: Sequence[str]) -> DataFile:
    values: dict[str, Any] = dict(part.split("=", 1) for part in revision.partition.split("/"))
    file = parquet_file_to_data_file(table.io, metadata_for_file(table, path), path)
    file[3] = Record(*(values[name] for name in names))
    return file
