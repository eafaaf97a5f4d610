"""Delete files of Iceberg tables' metadata that no kept snapshot needs: manifests, lists, old metadata.

Expired snapshots leave manifests behind; failed or killed commits leave everything that they wrote. Nothing is noted
before it is deleted: the next run finds what a killed one has left. Data files lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table

from include import lake
from include.crash_points import crash_point
from include.errors import MetadataGone, UsageError
from include.iceberg.catalog import find, opened, writing
from include.lake.scan import Folder, scan_files
from include.pipelines.spec import Pipeline

_KINDS = (".avro", ".metadata.json")


@dataclass(frozen=True)
class Unneeded:
    """Files that no kept snapshot needs, and why others were left."""

    files: tuple[Folder, ...]
    """Each alone."""
    left: tuple[str, ...]


def sweep_metadata(
    pipeline: Pipeline, before: datetime, *, dry_run: bool, tables: Sequence[str] | None = None
) -> Unneeded:
    """Delete files in the folders of the pipeline's tables that are no longer needed and were written before that time.

    `tables`: by default all that it declares. With `dry_run` only find the files. A table that cannot be read is left
    as it is.
    """
    files: list[Folder] = []
    left: list[str] = []
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables if tables is None else tables:
            try:
                stored = find(catalog, pipeline, table)
                if stored is not None:
                    files += _unneeded(stored, table, before)
            except (MetadataGone, UsageError) as error:
                left.append(error.message)
            except FileNotFoundError as error:
                left.append(f"the Iceberg table {table} misses {error.filename or error}; ./tidemark doctor")
        for each in [] if dry_run else files:
            lake.delete(each.location)
            crash_point("metadata_deleted")
    return Unneeded(tuple(files), tuple(left))


def _unneeded(table: Table, name: str, before: datetime) -> Iterator[Folder]:
    lying = scan_files("iceberg", name, "metadata")
    old = {at: each for at, each in lying.items() if each.newest < before and at.endswith(_KINDS)}
    # What all snapshots need is read only if something may be deleted.
    needed = set(_needed(table)) if old else set()
    yield from (each for at, each in sorted(old.items()) if at not in needed)


def _needed(table: Table) -> Iterator[str]:
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        yield from (each.manifest_path for each in snapshot.manifests(table.io))
