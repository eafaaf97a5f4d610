"""A check of a registered archive table's file format against the declared one."""

from __future__ import annotations

import json

from pyspark.sql.types import StructType

from include import catalog
from include.errors import UsageError
from include.pipelines.spec import Pipeline
from include.pipelines.spec.file_formats import TEXT_FORMATS
from spark_jobs.archive.schema import archive_schema


def check_storage(pipeline: Pipeline) -> None:
    """Raise UsageError when the registered archive table has files of another format than the declared one.

    All partitions of a table are read in one format. Where files do not tell the types of their columns, the declared
    columns must be the registered ones too.
    """
    stored, declared = catalog.storage(pipeline.table), pipeline.archive.file_format
    if stored is None:
        return
    if stored.file_format != declared:
        raise another_format(pipeline, stored.file_format)
    if declared in TEXT_FORMATS:
        fields = StructType.fromJson(json.loads(stored.columns)).fields
        before = {field.name: field.dataType.simpleString() for field in fields}
        now = {field.name: field.dataType.simpleString() for field in archive_schema(pipeline).fields}
        for name in {*pipeline.archive.partition_columns, "interval"}:
            before.pop(name, None)
        if list(before.items()) != list(now.items()):
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            raise UsageError(
                f"lake.{pipeline.table} has registered {declared} files with other columns: "
                f"{', '.join(changed) or 'their order'}",
                remedy="take the change of the columns back, or declare a pipeline of another name",
                pipeline=pipeline.name,
            )


def another_format(pipeline: Pipeline, registered: str) -> UsageError:
    """Return the error of a table whose registered files have another format than the declared one."""
    return UsageError(
        f"lake.{pipeline.table} has registered {registered} files, declared is {pipeline.archive.file_format}",
        remedy=f'declare file_format="{registered}" again, or a pipeline of another name',
        pipeline=pipeline.name,
    )
