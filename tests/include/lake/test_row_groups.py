"""Rows that are copied in portions, into row groups of bounded bytes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.lake import row_groups


def test_few_portions_are_in_memory_when_each_has_only_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day may consist of a hundred thousand files of a row each."""
    monkeypatch.setattr(row_groups, "_MOST_PORTIONS", 10)
    made: list[weakref.ref[pa.Table]] = []
    most = 0

    def portions() -> Iterator[pa.Table]:
        nonlocal most
        for number in range(95):
            table = pa.table({"n": [number], "value": [b"x" * number]})
            made.append(weakref.ref(table))
            most = max(most, sum(each() is not None for each in made))
            yield table

    path = tmp_path / "file.parquet"
    with pq.ParquetWriter(path, pa.schema({"n": pa.int64(), "value": pa.binary()})) as writer:
        assert lake.write_row_groups(writer, portions()) == 95
    assert most <= 12
    written = pq.ParquetFile(path)
    assert written.num_row_groups == 1
    assert written.read().to_pylist() == [{"n": number, "value": b"x" * number} for number in range(95)]


def test_portions_are_small_when_one_large_value_is_stored_once_for_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"value": [b"x" * 10_000] * 5_000}), path)
    with lake.open_parquet(path.as_uri(), page_by_page=True) as file:
        assert file.metadata.row_group(0).total_byte_size < 100_000
        portions = [*lake.portions_of(file)]
    assert sum(portion.num_rows for portion in portions) == 5_000
    assert max(portion.nbytes for portion in portions) < 11_000_000


def test_portions_have_few_rows_when_rows_are_large(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    values = [b"%05d" % number * 20_000 for number in range(200)]
    pq.write_table(pa.table({"value": values}), path)
    with lake.open_parquet(path.as_uri(), page_by_page=True) as file:
        portions = [*lake.portions_of(file)]
    assert max(portion.nbytes for portion in portions) < 6_000_000
    assert [value for portion in portions for value in portion["value"].to_pylist()] == values
