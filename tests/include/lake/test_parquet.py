"""Footers of Parquet files: changed without a byte before them, or not at all."""

from __future__ import annotations

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
