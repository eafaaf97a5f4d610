"""Tables of the catalog in which nothing was ever registered: no file binds them to what was declared before.

A first interval that is not registered leaves an empty table, made by its declaration. Another declaration makes it
anew, unless rows by the former one wait elsewhere: in landing files, or in a build that is being registered.
"""

from __future__ import annotations

from collections.abc import Iterable

from include import catalog
from include.catalog import Storage
from include.catalog.columns import (
    TAKE_BACK,
    Columns,
    changes,
    columns_of_json,
    declared_columns,
    declared_types,
    described,
)
from include.errors import UsageError
from include.ledger.archive import micro_batches
from include.ledger.columns.unregistered import BuiltFiles, had_files
from include.pipelines.spec import Pipeline
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.file_formats import format_of


def is_unregistered(table: str, stored: Storage) -> bool:
    """Return whether a table of the catalog is one that Tidemark made, without a partition, and never had files."""
    is_own = stored.partition_columns[-1:] == ("interval",)
    return is_own and not had_files(table) and not catalog.partitions([table])


def check_landed(pipeline: Pipeline, table: str, stored: Storage) -> None:
    """Raise UsageError when rows have landed by columns that an archive's table had, and that are no longer declared.

    Landing files are read by the declared columns. They have no partition columns, and a format of their own.
    """
    if table != pipeline.table or not micro_batches.positions(pipeline.name):
        return
    before, declared = columns_of_json(stored.columns, stored.partition_columns), declared_columns(pipeline, table)
    refused = changes(Columns(before.fields, declared.partition_by), declared).refused
    if refused:
        raise UsageError(
            f"nothing is registered in lake.{table} yet, but rows have landed with other columns: {described(refused)}",
            remedy=TAKE_BACK,
            pipeline=pipeline.name,
        )


def built_otherwise(pipeline: Pipeline, files: Iterable[BuiltFiles]) -> list[BuiltFiles]:
    """Return those of a build's files that the declared tables cannot have: they were written for former ones."""
    types = declared_types(pipeline)
    return [each for each in files if each.table in types and not _fits(pipeline, each, types[each.table])]


def _fits(pipeline: Pipeline, files: BuiltFiles, types: dict[str, str]) -> bool:
    if files.columns is None:
        return True
    declared = declared_columns(pipeline, files.table)
    partition_by = tuple(part.partition("=")[0] for part in files.partition.split("/"))
    if partition_by != declared.partition_by:
        return False
    if any(format_of(name) != pipeline.file_format(files.table) for name in files.names):
        return False
    if files.columns == types:
        return True
    try:
        was = fields_of(", ".join(f"`{name}` {kind}" for name, kind in files.columns.items()))
    except UsageError:
        # A field inside of a column has a name that only its declaration can quote.
        return False
    return not changes(Columns(was, partition_by), declared).refused
