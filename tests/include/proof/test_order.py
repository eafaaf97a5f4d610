"""Proofs of one interval follow each other by the chain and by time, not by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from include.proof import verify

FOLDER = "proofs/nest_cameras"


def write_proof(
    lake: Path, build: int, location: str, *, hour: int | None = None, after: dict[str, Any] | None = None
) -> dict[str, Any]:
    path = f"{FOLDER}/2026-11-20T05-{build}.json"
    table = {"table": "nest_cameras", "partition": "p", "location": location}
    file = {"name": "a.parquet", "sha256": None, "rows": 1}
    document = {
        "format": verify.FORMAT,
        "file": path,
        "interval": {"from": "2026-11-20T05:00:00Z"},
        "build": build,
        "registered_at": f"2026-11-20T{build if hour is None else hour:02}:00:00Z",
        "previous": {"nest_cameras": after and {"file": after["file"], "sha256": sha256_in(lake, after)}},
        "signature": {"algorithm": "none"},
        "tables": [{**table, "files": [file]}],
    }
    (lake / path).parent.mkdir(parents=True, exist_ok=True)
    (lake / path).write_text(json.dumps(document))
    return document


def sha256_in(lake: Path, proof: dict[str, Any]) -> str:
    return hashlib.sha256((lake / proof["file"]).read_bytes()).hexdigest()


def checked(tmp_path: Path, proof: dict[str, Any], *before: dict[str, Any]) -> tuple[list[int], verify.Report]:
    """The builds of the later proofs of the interval, and what was found; `before` are those that lead to it."""
    lake, report = verify.open_lake(str(tmp_path)), verify.Report()
    content, seen = (tmp_path / proof["file"]).read_bytes(), {each["file"] for each in before}
    later = verify._successors(content, proof, lake, seen, "", report)
    verify._check_files(proof, lake, later, report)
    return [each["build"] for each in later], report


def test_files_are_known_as_replaced_when_the_tenth_build_replaced_those_of_the_ninth(tmp_path: Path) -> None:
    first = write_proof(tmp_path, 8, "tables/nest_cameras/r-8")
    # The ninth build found the same rows and kept the revision; housekeeping removed it after the tenth.
    for build, location in ((9, "tables/nest_cameras/r-8"), (10, "tables/nest_cameras/r-10")):
        write_proof(tmp_path, build, location)
    builds, report = checked(tmp_path, first)
    assert builds == [9, 10]
    assert report.differences == []
    assert report.notes == [
        f"a later proof of this interval is {FOLDER}/2026-11-20T05-10.json",
        "nest_cameras p was replaced by a later run; its files are gone",
    ]


def test_later_proof_is_that_whose_chain_leads_to_this_one_when_the_clock_was_set_back(tmp_path: Path) -> None:
    first = write_proof(tmp_path, 1, "r-1", hour=9)
    second = write_proof(tmp_path, 2, "r-2", hour=8, after=first)
    third = write_proof(tmp_path, 3, "r-3", hour=7, after=second)
    assert checked(tmp_path, first)[0] == [2, 3]
    assert checked(tmp_path, second, first)[0] == [3]
    assert checked(tmp_path, third, first, second)[0] == []


def test_proof_is_told_to_be_replaced_when_its_files_are_still_there(tmp_path: Path) -> None:
    first = write_proof(tmp_path, 1, "r-1")
    write_proof(tmp_path, 2, "r-2", after=first)
    (tmp_path / "r-1").mkdir()
    (tmp_path / "r-1/a.parquet").touch()
    assert "nest_cameras p was replaced by a later run; its files are there" in checked(tmp_path, first)[1].notes
