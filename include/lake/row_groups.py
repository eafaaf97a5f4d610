"""Copy rows between Parquet files in portions of bounded bytes, however large a row or a row group is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 1 << 26
"""Bytes of a row group in memory from which on it is written."""

_BATCH_BYTES = 1 << 22

_MOST_ROWS = 1_000
"""Rows of a batch: a dictionary may store a large value once that thousands of rows have."""


def batches_of(file: pq.ParquetFile, number: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, with these columns or all, in batches of a few megabytes.

    Open the file with `page_by_page`, or its row groups are read into memory whole.
    """
    group = file.metadata.row_group(number)
    row_bytes = group.total_byte_size // max(group.num_rows, 1)
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES // max(row_bytes, 1)))
    yield from file.iter_batches(rows, row_groups=[number], columns=columns and list(columns))


def write_row_groups(writer: pq.ParquetWriter, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the batches in row groups of about `ROW_GROUP_BYTES`, the last one smaller; return the number of rows."""
    rows = size = 0
    waiting: list[pa.RecordBatch] = []
    for batch in filter(len, batches):
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting, size = [], 0
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    return rows
