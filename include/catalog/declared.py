"""Checks of registered tables against their declaration: file format, columns, and whose they are."""

from __future__ import annotations

import logging

from include import catalog
from include.catalog import Storage
from include.catalog.columns import TAKE_BACK, check_columns, columns_of_json, kind_of
from include.catalog.renames import by_any_name, check_renames, shown_names
from include.catalog.unregistered import check_landed, is_unregistered
from include.errors import ServiceUnreachable, UsageError
from include.ledger.columns import partition_sources
from include.ledger.completeness.tables import tables_with_rows
from include.ledger.intervals.revisions import registered
from include.pipelines.spec import Pipeline
from include.pipelines.spec.ddl import check_path
from include.pipelines.spec.names import LONGEST_PATH, path_length

_TEXT = 100
"""Characters of a text that may be a folder's name (`lake.SAFE_VALUE`)."""

_NUMBER = 41
"""Characters of the longest number: a decimal of 38 digits with its sign, the point and a zero before it."""

_LENGTHS = {"BOOLEAN": 5, "TINYINT": 4, "SMALLINT": 6, "INT": 11, "BIGINT": 20, "DATE": 14}
"""Characters of the longest value of other types."""


def check_storage(pipeline: Pipeline) -> list[str]:
    """Raise UsageError when registered files are not as declared: of another format, or with columns that do not fit.

    All partitions of a table are read in one format, by one list of columns (`include/catalog/columns.py`); a partition
    column has the values of one column. Return the tables that are to be made anew: they were made by another
    declaration, and nothing was ever registered in them.
    """
    stored = {table: catalog.storage(table) for table in pipeline.tables}
    anew = [table for table, each in stored.items() if each is not None and is_to_be_anew(pipeline, table, each)]
    if pipeline.archive.partition_by and stored[pipeline.table] is not None:
        _check_partition_sources(pipeline)
    return anew


def is_to_be_anew(pipeline: Pipeline, table: str, stored: Storage) -> bool:
    """Return whether a table cannot follow its declaration, but was never used; raise UsageError if it was."""
    columns = columns_of_json(stored.columns, stored.partition_columns)
    # Landing files, too, have columns by names of before.
    check_renames(pipeline, table, columns)
    try:
        if stored.file_format != pipeline.file_format(table):
            raise another_format(pipeline, stored.file_format)
        check_columns(pipeline, table, columns, shown_names(pipeline, table, columns))
    except UsageError:
        if not is_unregistered(table, stored):
            raise
        check_landed(pipeline, table, stored)
        return True
    return False


def _check_partition_sources(pipeline: Pipeline) -> None:
    """Raise UsageError when a partition column had its values from another column, renamed ones apart.

    Readers would find values of two columns under one name, and an erasure only those of the declared one.
    """
    noted = partition_sources.sources(pipeline.table)
    for name, declared in pipeline.archive.partition_by.items():
        was = noted.get(name, declared)
        if was not in by_any_name(pipeline, declared):
            raise UsageError(
                f"lake.{pipeline.table} has registered files in partitions by other columns: {name} had the values of "
                f"{was}, declared is {declared}",
                remedy=TAKE_BACK,
                pipeline=pipeline.name,
            )


def check_own_tables(pipeline: Pipeline) -> None:
    """Raise UsageError when a table has registered partitions of another pipeline, and none of this one yet.

    Pipeline `a` with a view `b_c` and pipeline `a_b` with a view `c` have one table, which stays when the view is taken
    out. Readers would add up the rows of both.
    """
    if pipeline.declared_as:
        # It reads lines, and registers nothing.
        return
    known = tables_with_rows()
    for table in pipeline.tables:
        before = [name for name, tables in known.items() if table in tables]
        if not before or pipeline.name in before:
            continue
        # Registered in the ledger they stay when somebody has dropped the table.
        theirs = {catalog.comparable_location(each.location) for each in registered(table)}
        if theirs & catalog.pointed_at([table]):
            raise UsageError(
                f"lake.{table} has registered partitions of {' and '.join(before)}: "
                f"readers would add up its rows with those of {pipeline.name}",
                remedy=f"give what writes it another name in include/pipelines/{pipeline.code}.py, or drop the table",
                pipeline=pipeline.name,
            )


def check_storage_early(pipeline: Pipeline) -> None:
    """Do what `check_storage` and `check_own_tables` do before a stream runs: each interval would refuse it later.

    A stream needs no catalog: where it does not answer, go on with a warning.
    """
    try:
        check_storage(pipeline)
        check_own_tables(pipeline)
        _check_paths(pipeline)
    except ServiceUnreachable as error:
        logging.getLogger("tidemark").warning(
            "%s: neither the declared columns nor the tables' owners were compared with what is registered: %s",
            pipeline.name,
            error.message,
        )


def _check_paths(pipeline: Pipeline) -> None:
    """Raise UsageError when the table does not exist yet and partitions may have a longer path than the catalog keeps.

    A table that exists goes on with its shorter values: another `partition_by` would be refused.
    """
    if (longest := _longest_path(pipeline)) <= LONGEST_PATH or catalog.storage(pipeline.table) is not None:
        return
    if pipeline.table not in tables_with_rows().get(pipeline.name, ()):
        raise UsageError(
            f"a partition by {', '.join(pipeline.archive.partition_by)} may have a path of {longest} characters, and "
            f"Hive's metastore keeps {LONGEST_PATH}",
            remedy="name fewer columns in partition_by, or give them shorter names",
            pipeline=pipeline.name,
        )


def long_paths(pipeline: Pipeline) -> str:
    """Return the note about a pipeline whose partitions may have a longer path than the catalog keeps; else empty."""
    if (longest := _longest_path(pipeline)) <= LONGEST_PATH:
        return ""
    may = f"partitions by {', '.join(pipeline.archive.partition_by)} may have a path of {longest} characters"
    return f"{pipeline.name}: {may}, and an interval with one of more than {LONGEST_PATH} is not registered"


def _longest_path(pipeline: Pipeline) -> int:
    """Return how many characters a partition's path of the archive may have by the types of its columns."""
    archive = pipeline.archive
    kinds = {
        name: kind_of(check_path(path, archive.columns, "partition_by")) for name, path in archive.partition_by.items()
    }
    texts = dict.fromkeys(("STRING", "BINARY"), _TEXT)
    return path_length({name: (_LENGTHS | texts).get(kind, _NUMBER) for name, kind in kinds.items()})


def another_format(pipeline: Pipeline, registered: str) -> UsageError:
    """Return the error of a table whose registered files have another format than the declared one."""
    return UsageError(
        f"lake.{pipeline.table} has registered {registered} files, declared is {pipeline.archive.file_format}",
        remedy=f'declare file_format="{registered}" again, or a pipeline of another name',
        pipeline=pipeline.name,
    )
