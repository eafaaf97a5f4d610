"""Parquet files of the lake: footers and column statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.parquet as pq

from include.lake.files import filesystem, reaching_lake


@reaching_lake
def footer(location: str) -> pq.FileMetaData:
    """The footer of a Parquet file: rows and column statistics without reading the data."""
    with parquet_file(location) as file:
        return file.metadata


@contextmanager
def parquet_file(location: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, open: its footer is read, and of its columns those that are asked for."""
    system, path = filesystem(location)
    with system.open_input_file(path) as file:
        yield pq.ParquetFile(file)


def column_bounds(metadata: pq.FileMetaData, column: str) -> tuple[object, object] | None:
    """Minimum and maximum of a column (dotted path) over all row groups, from the footer."""
    found = [each for each in _statistics(metadata, column) if each is not None and each.has_min_max]
    return (min(each.min for each in found), max(each.max for each in found)) if found else None


def constant(metadata: pq.FileMetaData, column: str) -> object | None:
    """What a column (dotted path) is in every row, as the footer tells; None where it is not, or does not, tell one."""
    values = set()
    for each in _statistics(metadata, column):
        if each is None or not each.has_min_max or each.null_count != 0 or each.min != each.max:
            return None
        values.add(each.min)
    return values.pop() if len(values) == 1 else None


def _statistics(metadata: pq.FileMetaData, column: str) -> Iterator[pq.Statistics | None]:
    """Those of a column in each row group that has it."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema == column:
                yield chunk.statistics
