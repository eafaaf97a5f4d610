"""Revisions that hold fewer records than they should are damaged, whatever their files' hashes say."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from include import lake
from include.lake.revision_files import damage_of, damaged_files
from include.ledger.lineage import BuiltRevision


def revision(folder: Path, **counted: int) -> BuiltRevision:
    file = folder / "part-0.parquet"
    file.write_bytes(b"rows")
    noted: dict[str, Any] = {"bytes": 4, "sha256": lake.sha256(file.as_uri()), "rows": 9, **counted}
    return BuiltRevision("table", "interval=1", "r1", folder.as_uri(), 9, "hash", {file.name: noted})


def test_revisions_are_damaged_when_they_hold_other_records_than_were_archived(tmp_path: Path) -> None:
    built = revision(tmp_path, records=5)
    assert damage_of([built], records=5) == ""
    assert "hold 5 records, 6 have rows" in damage_of([built], records=6)
    assert "hold 5 records, 4 have rows" in damage_of([built], records=4)
    assert "no revision of the archive table is registered" in damage_of([], records=5)
    assert damage_of([], records=0) == ""


def test_revisions_are_not_trusted_when_nobody_counted_their_records(tmp_path: Path) -> None:
    assert damage_of([revision(tmp_path, records=5)], records=None) != ""


def test_altered_file_is_named_when_the_counts_agree(tmp_path: Path) -> None:
    built = revision(tmp_path, records=5)
    (tmp_path / "part-0.parquet").write_bytes(b"swor")
    assert "part-0.parquet" in damage_of([built], records=5)


def test_each_difference_is_named_when_a_directory_is_not_as_it_was_built(tmp_path: Path) -> None:
    built = revision(tmp_path)
    file, extra = tmp_path / "part-0.parquet", "extra file: part-1.parquet (4 bytes)"
    (tmp_path / "part-1.parquet").write_bytes(b"more")

    def differences() -> list[str]:
        return [str(each) for each in damaged_files(built.location, built.files, deep=False)]

    assert differences() == [extra]
    for content in (b"cut", b"longer"):
        file.write_bytes(content)
        assert differences() == [extra, f"wrong size: part-0.parquet ({len(content)} bytes, 4 when built)"]
    file.unlink()
    assert differences() == [extra, "file missing: part-0.parquet"]


@pytest.mark.parametrize("is_noted_decompressed", [False, True], ids=["now", "by earlier code"])
def test_changed_byte_of_a_compressed_file_is_named(tmp_path: Path, is_noted_decompressed: bool) -> None:
    content = b"a,b\n1,2\n" * 100
    file = tmp_path / "part-0.csv.gz"
    whole = gzip.compress(content)
    file.write_bytes(whole)
    noted = hashlib.sha256(content if is_noted_decompressed else whole).hexdigest()
    facts = {file.name: {"bytes": len(whole), "sha256": noted}}
    assert list(damaged_files(tmp_path.as_uri(), facts, deep=True)) == []
    # In the middle, in the checksum, and in the header, which says nothing about the content.
    for at in (len(whole) // 2, len(whole) - 6, *(() if is_noted_decompressed else (4,))):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert [each.damage for each in damaged_files(tmp_path.as_uri(), facts, deep=True)] == ["changed content"]


def test_files_count_for_themselves_when_they_were_built_before_records_were_counted(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("uncounted", "counted")]
    for folder in folders:
        folder.mkdir()
    uncounted, counted = revision(folders[0]), revision(folders[1], records=4)
    assert damage_of([uncounted], records=5) == ""
    assert damage_of([uncounted, counted], records=5) == ""
