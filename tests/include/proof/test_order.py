"""Proofs of one interval follow each other by the numbers of their builds, not by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.proof import verify

FOLDER = "proofs/nest_cameras"


def write_proof(lake: Path, build: int, location: str) -> dict[str, Any]:
    path = f"{FOLDER}/2026-11-20T05-{build}.json"
    table = {"table": "nest_cameras", "partition": "p", "location": location}
    file = {"name": "a.parquet", "sha256": None, "rows": 1}
    document = {
        "format": verify.FORMAT,
        "file": path,
        "interval": {"from": "2026-11-20T05:00:00Z"},
        "build": build,
        "registered_at": f"2026-11-20T{build:02}:00:00Z",
        "previous": {},
        "signature": {"algorithm": "none"},
        "tables": [{**table, "files": [file]}],
    }
    (lake / path).parent.mkdir(parents=True, exist_ok=True)
    (lake / path).write_text(json.dumps(document))
    return document


def test_files_are_known_as_replaced_when_the_tenth_build_replaced_those_of_the_ninth(tmp_path: Path) -> None:
    first = write_proof(tmp_path, 8, "tables/nest_cameras/r-8")
    # The ninth build found the same rows and kept the revision; housekeeping removed it after the tenth.
    for build, location in ((9, "tables/nest_cameras/r-8"), (10, "tables/nest_cameras/r-10")):
        write_proof(tmp_path, build, location)
    lake, report = verify.open_lake(str(tmp_path)), verify.Report()
    content = (tmp_path / first["file"]).read_bytes()
    later = verify._successors(content, first, lake, set(), "", report)
    assert [each["build"] for each in later] == [9, 10]
    verify._check_files(first, lake, later, report)
    assert report.differences == []
    assert report.notes == ["nest_cameras p was replaced by a later run; its files are gone"]
