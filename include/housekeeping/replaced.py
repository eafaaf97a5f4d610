"""Files that left landing and quarantine unnamed: set aside, and put back for a ledger that names them.

Compaction puts one file of a day in the place of many. From then on the ledger names the one, but a ledger that is
restored from an older copy names the many. So they are kept for as long as such copies are (`Retention.replaced`).
They lie outside of the quarantine, whose readers would count their records twice.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from include import lake
from include.lake.scan import scan_files
from include.ledger.archive import landing_files

FOLDER = "replaced"
"""Folder of the lake with a folder for each pipeline, in it one for each run of housekeeping."""

_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"\d{8}T\d{6}Z")


def set_aside(pipeline: str, location: str, now: datetime) -> None:
    """Move a file of landing or quarantine aside; the checksum file that Hadoop wrote beside it goes."""
    # Found by a listing: somebody may have given it a name that no commit would.
    lake.move(location, f"{lake.uri(FOLDER, pipeline, now.strftime(_TIME))}/{lake.below_lake(location)}")
    lake.delete_file(location)


def runs(pipeline: str) -> dict[str, datetime]:
    """Return the folders of the runs that set files aside, with their times."""
    root = lake.uri(FOLDER, pipeline)
    return {
        f"{root}/{entry.name}": datetime.strptime(entry.name, _TIME).replace(tzinfo=UTC)
        for entry in lake.list_entries(root, recursive=False)
        if entry.is_folder and _NAME.fullmatch(entry.name)
    }


def to_put_back(pipeline: str) -> dict[str, str]:
    """Return where the files lie that were set aside, that the ledger names, and that are not there; by their paths.

    Paths are below the lake.
    """
    aside: dict[str, tuple[str, int]] = {}
    for location, file in scan_files(FOLDER, pipeline).items():
        _, path = location.removeprefix(f"{lake.uri(FOLDER, pipeline)}/").split("/", 1)
        aside[path] = location, file.bytes
    named = {each.path: each.bytes for each in landing_files.files_at(pipeline, [*aside]) if each.removed_at is None}
    return {
        path: location
        for path, (location, size) in aside.items()
        if named.get(path) == size and not lake.exists(lake.uri(path))
    }


def put_back(pipeline: str) -> list[str]:
    """Move the files back that the ledger names and that are not there; return their paths below the lake.

    The caller holds the lock on moving the pipeline's files.
    """
    found = to_put_back(pipeline)
    for path, location in found.items():
        lake.move(location, lake.uri(path))
    return sorted(found)
