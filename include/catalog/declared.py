"""A check of registered tables against their declaration: file format and columns."""

from __future__ import annotations

import logging

from include import catalog
from include.catalog.columns import check_columns, columns_of_json
from include.catalog.renames import check_renames, shown_names
from include.errors import ServiceUnreachable, UsageError
from include.pipelines.spec import Pipeline


def check_storage(pipeline: Pipeline) -> None:
    """Raise UsageError when registered files are not as declared: of another format, or with columns that do not fit.

    All partitions of a table are read in one format, by one list of columns (`include/catalog/columns.py`).
    """
    for table in pipeline.tables:
        stored = catalog.storage(table)
        if stored is None:
            continue
        if stored.file_format != pipeline.file_format(table):
            raise another_format(pipeline, stored.file_format)
        columns = columns_of_json(stored.columns, stored.partition_columns)
        check_renames(pipeline, table, columns)
        check_columns(pipeline, table, columns, shown_names(pipeline, table, columns))


def check_storage_early(pipeline: Pipeline) -> None:
    """Do what `check_storage` does before a stream runs: what it landed otherwise, each interval would refuse.

    A stream needs no catalog: where it does not answer, go on with a warning.
    """
    try:
        check_storage(pipeline)
    except ServiceUnreachable as error:
        logging.getLogger("tidemark").warning(
            "%s: the declared columns were not compared with the registered ones: %s", pipeline.name, error.message
        )


def another_format(pipeline: Pipeline, registered: str) -> UsageError:
    """Return the error of a table whose registered files have another format than the declared one."""
    return UsageError(
        f"lake.{pipeline.table} has registered {registered} files, declared is {pipeline.archive.file_format}",
        remedy=f'declare file_format="{registered}" again, or a pipeline of another name',
        pipeline=pipeline.name,
    )
