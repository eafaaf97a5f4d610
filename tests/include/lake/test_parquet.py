"""Footers of Parquet files: changed without a byte before them, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
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
