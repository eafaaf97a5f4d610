"""Footers of Parquet files: changed without a byte before them, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of several times the size that is copied at once."""
    made = tmp_path / "part.parquet"
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 1_500_000)
    pq.write_table(pa.table({"n": numbers}), made, compression="none", use_dictionary=False)
    assert made.stat().st_size > 10_000_000
    return made


def test_bytes_before_the_footer_stay_when_it_is_changed(file: Path) -> None:
    before, footers = file.read_bytes(), []

    def longer(footer: bytes) -> bytes:
        footers.append(footer)
        return footer + b"more"

    lake.change_footer(file.as_uri(), longer)
    after, (footer,) = file.read_bytes(), footers
    data = before[: -8 - len(footer)]
    assert before == data + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert after == data + footer + b"more" + (len(footer) + 4).to_bytes(4, "little") + b"PAR1"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_file_stays_as_it_is_when_its_footer_cannot_be_changed(file: Path) -> None:
    before = file.read_bytes()

    def refused(footer: bytes) -> bytes:
        raise ValueError(f"{len(footer)} bytes")

    with pytest.raises(ValueError, match="bytes"):
        lake.change_footer(file.as_uri(), refused)
    assert file.read_bytes() == before
    assert pq.read_metadata(file).num_rows == 1_500_000


def test_bounds_of_times_are_in_utc_and_unknown_when_the_column_is_a_text(tmp_path: Path) -> None:
    first, last = datetime(2026, 11, 18, 5), datetime(2026, 11, 20, 6)
    columns = {
        "moment": pa.array([last, first], pa.timestamp("us", "UTC")),
        "local": pa.array([last, first], pa.timestamp("us")),
        "day": pa.array([last, first], pa.date32()),
        "text": ["2026-11-18", "2026-11-20"],
        "none": pa.array([None, None], pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    footer = lake.read_footer((tmp_path / "part.parquet").as_uri())
    exact = (first.replace(tzinfo=UTC), last.replace(tzinfo=UTC))
    midnights = (datetime(2026, 11, 18, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC))
    found = {name: lake.time_bounds(footer, name) for name in columns}
    assert found == {"moment": exact, "local": exact, "day": midnights, "text": None, "none": None}


def test_bounds_are_unknown_when_a_row_group_with_values_has_none(tmp_path: Path) -> None:
    # PyArrow, as parquet-java, leaves out the bounds of long texts.
    texts = pa.table({"text": ["a", "b", "z" * 5_000, "y"], "none": ["a", "b", None, None]})
    pq.write_table(texts, tmp_path / "part.parquet", row_group_size=2)
    footer = lake.read_footer((tmp_path / "part.parquet").as_uri())
    assert [lake.column_bounds(footer, name) for name in ("text", "none")] == [None, ("a", "b")]
    assert lake.columns_with(footer, lambda each: not lake.has_bounds(each)) == {"text"}


ROWS = pa.table({"n": list(range(30)), "text": [f"t{n}" for n in range(30)], "of": ["a", "b"] * 15})


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A file of three row groups: but for one column, the values of the last one are damaged."""
    path = tmp_path / "rows.parquet"
    pq.write_table(ROWS, path, row_group_size=10, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(2)
    for column in (group.column(1), group.column(2)):
        begin = column.data_page_offset
        content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    return f"file://{path}"


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"n": (7, 7)}, [7]),
        ({"n": (8, 11)}, [8, 9, 10, 11]),
        ({"n": (6, 9), "of": ("b", "b")}, [7, 9]),
        ({"n": (6, 5)}, []),
        ({"n": (99, 99)}, []),
    ],
)
def test_row_groups_are_not_read_when_no_row_of_theirs_is_within_bounds(
    damaged: str, bounds: lake.Bounds, found: list[int]
) -> None:
    with lake.open_parquet(damaged) as file:
        rows = [row for each in lake.rows_within(file, ["n", "text"], bounds) for row in each.to_pylist()]
    assert rows == [{"n": n, "text": f"t{n}"} for n in found]


@pytest.mark.parametrize("beyond_python", [False, True])
def test_time_is_found_only_in_rows_within_the_bounds(tmp_path: Path, beyond_python: bool) -> None:
    moments = [datetime(2026, 11, 18, hour, tzinfo=UTC) for hour in (5, 6, 7)]
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    if beyond_python:
        # Without bounds in Python: every row is looked at.
        times = pa.concat_arrays([times.slice(0, 2), pa.array([2**62]).cast(times.type)])
    location = (tmp_path / "part.parquet").as_uri()
    pq.write_table(pa.table({"at": times, "n": [1, 2, 3]}), tmp_path / "part.parquet")
    found = {n: [lake.has_times_from(location, "at", each, {"n": (1, n)}) for each in moments] for n in (1, 2, 3)}
    assert found == {1: [True, False, False], 2: [True, True, False], 3: [True, True, True]}


def test_footer_alone_is_read_when_all_times_are_earlier(tmp_path: Path) -> None:
    path, last = tmp_path / "part.parquet", datetime(2026, 11, 18, tzinfo=UTC)
    pq.write_table(pa.table({"at": pa.array([last] * 9, pa.timestamp("us", "UTC"))}), path, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    begin, length = chunk.data_page_offset, chunk.total_compressed_size
    content[begin : begin + length] = b"\xff" * length
    path.write_bytes(content)
    assert not lake.has_times_from(path.as_uri(), "at", last + timedelta(seconds=1), {})
    with pytest.raises(OSError, match="deserialize"):
        lake.has_times_from(path.as_uri(), "at", last, {})


def test_every_row_comes_a_few_at_a_time_when_there_are_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(5_000), "value": [b"x"] * 5_000}), path)
    with lake.open_parquet(f"file://{path}") as file:
        sizes = [each.num_rows for each in lake.rows_within(file, ["n"], {})]
        found = [each.num_rows for each in lake.rows_within(file, ["n", "value"], {"n": (1_900, 2_100)})]
    assert sizes == [2_000, 2_000, 1_000]
    assert found == [100, 101]
