"""Files that are written again without erased records, without services."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.erasure import files
from include.lake import row_groups


def write(path: Path, rows: int) -> str:
    """A file with one row group."""
    coordinates = {"kafka_topic": ["events"] * rows, "kafka_partition": [0] * rows, "kafka_offset": [*range(rows)]}
    pq.write_table(pa.table({**coordinates, "value": [b"%d " % n * 200 for n in range(rows)]}), path)
    assert pq.ParquetFile(path).num_row_groups == 1
    return path.as_uri()


def test_row_group_is_divided_when_it_has_more_bytes_than_the_bound(
    own_lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version wrote a micro-batch's bad records as one row group, whatever their size."""
    rows, bound = 6_000, 1 << 20
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", bound)
    gone = {("events", 0, 7), ("events", 0, rows - 1), ("events", 1, 8)}
    source = write(own_lake / "part.parquet", rows)
    assert files._copy(source, f"{own_lake.as_uri()}/new.parquet", gone) == rows - 2
    copied = pq.ParquetFile(own_lake / "new.parquet")
    sizes = [copied.read_row_group(number).nbytes for number in range(copied.num_row_groups)]
    assert max(sizes) < 2 * bound
    kept = copied.read()
    assert kept["kafka_offset"].to_pylist() == [n for n in range(rows) if n not in (7, rows - 1)]
    assert kept["value"][-1].as_py() == b"%d " % (rows - 2) * 200


def test_file_without_rows_is_written_when_all_its_records_are_erased(own_lake: Path) -> None:
    source = write(own_lake / "part.parquet", 3)
    gone = {("events", 0, offset) for offset in range(3)}
    assert files._copy(source, f"{own_lake.as_uri()}/new.parquet", gone) == 0
    assert pq.ParquetFile(own_lake / "new.parquet").read().num_rows == 0
