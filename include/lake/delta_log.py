"""The log of a Delta table: what commits to it, and how the values of rows that it repeats are removed.

A commit names its files with each column's least and greatest value. So do checkpoints, and checksums of small tables.
Readers rebuild the newest version from the newest checkpoint alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as fs

from include.crash_points import crash_point
from include.errors import UsageError
from include.lake.disks import takes_links
from include.lake.files import delete, delete_file, filesystem, list_entries, read_text, root, uri, write_text

OWN = "tidemark"
"""The mark of Tidemark's commits in the table's history; commits of intervals state more."""

_SAYS_MORE = '{"tidemark.'
"""How the metadata of a commit with an interval's rows begins: a JSON object with what an Iceberg snapshot states."""

_LOG_FILE = re.compile(r"(\d{20})\.(.+)")

_TEMPORARY = re.compile(r"\.{1,2}(\d{20})\..+\.tmp(?:\.crc)?")
"""What a killed driver leaves of a file of the log, and Hadoop's checksum of that."""


def is_own(metadata: str | None) -> bool:
    """Return whether a commit's metadata is Tidemark's."""
    return metadata is not None and (metadata == OWN or metadata.startswith(_SAYS_MORE))


def check_disk(pipeline: str) -> None:
    """Raise UsageError when the disk of a pipeline's Delta table lets two drivers commit the same version.

    The table may not exist yet. Where the lake is not on a disk, nothing is checked.
    """
    table = uri("delta", pipeline)
    if table.startswith("file://") and not takes_links(Path(table.removeprefix("file://")) / "_delta_log"):
        raise UsageError(
            f"the disk of {root()} has no hard links, so two drivers could commit the same version of its Delta table, "
            "and rows would be lost",
            remedy="use a disk with hard links, or declare the archive with iceberg=True, not delta=True, and remove "
            f"{table}",
            pipeline=pipeline,
        )


def commit_id(table: str, version: int) -> str | None:
    """Return what tells a version's commit from another one of the same number; None where its file is gone."""
    try:
        commit = read_text(f"{table}/_delta_log/{version:020}.json")
    except FileNotFoundError:
        return None
    # Values may hold U+2028 and the like, at which `splitlines` would break them.
    infos = (json.loads(line)["commitInfo"] for line in commit.split("\n") if line.startswith('{"commitInfo"'))
    info: dict[str, Any] = next(infos, {})
    # Not every writer notes a transaction.
    return str(info.get("txnId") or info.get("timestamp") or "")


def forget_values(table: str, version: int, without_names: Callable[[str], str] = str) -> None:
    """Remove values of rows from a table's log, up to a version that has a checkpoint; repeating it changes nothing.

    Commits keep their files, transactions and Tidemark's metadata as `without_names` returns it; they lose columns'
    bounds, and commits of other writers lose their conditions. Older checkpoints and checksums are deleted, and what
    killed drivers left.
    """
    log = f"{table}/_delta_log"
    for entry in list_entries(log, recursive=False):
        left = _TEMPORARY.fullmatch(entry.name)
        if left is not None and int(left[1]) <= version:
            delete_file(f"{log}/{entry.name}")
        match = _LOG_FILE.fullmatch(entry.name)
        if match is None or int(match[1]) > version:
            continue
        if match[2] == "json":
            _forget_in_commit(f"{log}/{entry.name}", without_names)
        elif int(match[1]) < version:
            delete_file(f"{log}/{entry.name}")
        crash_point("delta_log_file_swept")


def _forget_in_commit(location: str, without_names: Callable[[str], str]) -> None:
    before = read_text(location)
    # Values may hold U+2028 and the like, at which `splitlines` would break them.
    after = "".join(f"{_without_values(line, without_names)}\n" for line in before.split("\n") if line)
    if after == before:
        return
    system, path = filesystem(location)
    mtime = system.get_file_info(path).mtime_ns
    folder, _, name = location.rpartition("/")
    # Hadoop would compare this checksum with the new content.
    delete(f"{folder}/.{name}.crc")
    write_text(location, after)
    if isinstance(system, fs.LocalFileSystem) and mtime is not None:
        # The file's time is the commit's time.
        os.utime(path, ns=(mtime, mtime))


def _without_values(line: str, without_names: Callable[[str], str]) -> str:
    action: dict[str, Any] = json.loads(line)
    for kind in ("add", "remove"):
        if kind in action:
            action[kind].pop("stats", None)
    info = action.get("commitInfo")
    if info is not None and is_own(info.get("userMetadata")):
        info["userMetadata"] = without_names(info["userMetadata"])
    elif info is not None:
        info.pop("userMetadata", None)
        info["operationParameters"] = {}
    return json.dumps(action, ensure_ascii=False, separators=(",", ":"))
