"""Copy rows between Parquet files in portions of bounded bytes, however large a row or a row group is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 1 << 26
"""Bytes of a row group in memory from which on it is written."""

_PORTION_BYTES = 1 << 22

_MOST_ROWS = 1_000
"""Rows of a portion: a dictionary may store a large value once that thousands of rows have."""


_MOST_PORTIONS = 1_000
"""Portions in memory one by one: many of a row each need far more room than their values."""


def portions_of(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows, with these columns or all, in portions of a few megabytes; none is of two row groups.

    Open the file with `page_by_page`, or its row groups are read into memory whole.
    """
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = group.total_byte_size // max(group.num_rows, 1)
        rows = max(1, min(_MOST_ROWS, _PORTION_BYTES // max(row_bytes, 1)))
        for batch in file.iter_batches(rows, row_groups=[number], columns=columns and list(columns)):
            yield pa.Table.from_batches([batch])


def write_row_groups(writer: pq.ParquetWriter, portions: Iterable[pa.Table]) -> int:
    """Write the portions in row groups of about `ROW_GROUP_BYTES`, the last one smaller; return the number of rows."""
    rows = size = 0
    waiting: list[pa.Table] = []
    for portion in filter(len, portions):
        waiting.append(portion)
        rows += portion.num_rows
        size += portion.nbytes
        if size >= ROW_GROUP_BYTES:
            writer.write_table(pa.concat_tables(waiting))
            waiting, size = [], 0
        elif len(waiting) == _MOST_PORTIONS:
            waiting = [pa.concat_tables(waiting).combine_chunks()]
    if waiting:
        writer.write_table(pa.concat_tables(waiting))
    return rows
