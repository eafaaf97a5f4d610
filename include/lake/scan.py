"""List the lake's folders: revision directories, staging folders and stray files, from one listing each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from include import lake
from include.times import EPOCH

_AT_ONCE = 500
"""Landing folders whose files are in memory at once."""

_ENTRIES = 1_000
"""Entries of a table's folder with which a part of it ends."""

_LISTINGS = 8
"""Listings at a time: an object store answers each late, but many at once."""


@dataclass
class Folder:
    """A folder with the files in it."""

    location: str
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of the visible files, by name."""
    bytes: int = 0
    newest: datetime = EPOCH
    """Time of the last change in it."""

    def add(self, entry: lake.Entry, name: str) -> None:
        """Add an entry of the folder; `name` is its path inside."""
        self.newest = max(self.newest, entry.modified or EPOCH)
        if not entry.is_folder and name:
            self.bytes += entry.bytes
            if lake.is_visible(name):
                self.files[name] = entry.bytes

    def has_content(self) -> bool:
        """Return whether there is anything in it.

        An object store also lists folders without a file: Arrow's client leaves an empty object with the folder's name
        where it moves or deletes the last one. They have no age, and a driver may be about to write there.
        """
        return self.newest > EPOCH


@dataclass
class TableScan:
    """Content of a table's folder."""

    revisions: dict[str, Folder] = field(default_factory=dict)
    """Revision directories by their location."""
    unfinished: dict[str, Folder] = field(default_factory=dict)
    """Staging folders by their location."""
    strays: dict[str, Folder] = field(default_factory=dict)
    """Files outside of any revision directory, by their location."""


def scan_table(table: str) -> TableScan:
    """Return the content of a table's folder, classified by its paths: `<name=value>/…/<revision>/<file>`."""
    root = lake.uri("tables", table)
    return _classified(root, lake.list_entries(root))


def scan_table_parts(table: str) -> Iterator[TableScan]:
    """Yield `scan_table` of some of the folders directly in the table's, each whole, listed when they are asked for.

    A table gets thousands of revisions a day where its partitions have many values; a view's has one in each folder.
    """
    root = lake.uri("tables", table)
    tops, part = lake.list_entries(root, recursive=False), list[lake.Entry]()
    with ThreadPoolExecutor(_LISTINGS) as pool:
        for start in range(0, len(tops), _LISTINGS):
            for listed in pool.map(partial(_listed_below, root), tops[start : start + _LISTINGS]):
                part += listed
                if len(part) >= _ENTRIES:
                    yield _classified(root, part)
                    part = []
    if part:
        yield _classified(root, part)


def _listed_below(root: str, top: lake.Entry) -> list[lake.Entry]:
    below = lake.list_entries(f"{root}/{top.name}") if top.is_folder else []
    return [top, *(replace(each, name=f"{top.name}/{each.name}") for each in below)]


def _classified(root: str, entries: Iterable[lake.Entry]) -> TableScan:
    scan = TableScan()
    for entry in entries:
        parts = entry.name.split("/")
        depth = next((n for n, part in enumerate(parts) if "=" not in part), len(parts))
        if parts[0].startswith("_staging-"):
            _folder(scan.unfinished, root, parts[:1]).add(entry, "/".join(parts[1:]))
        elif depth < len(parts) - 1 or (depth == len(parts) - 1 and entry.is_folder):
            _folder(scan.revisions, root, parts[: depth + 1]).add(entry, "/".join(parts[depth + 1 :]))
        elif not entry.is_folder:
            stray = _folder(scan.strays, root, parts)
            stray.add(entry, parts[-1])
    scan.revisions, scan.unfinished = _with_content(scan.revisions), _with_content(scan.unfinished)
    return scan


def _folder(folders: dict[str, Folder], root: str, parts: Iterable[str]) -> Folder:
    location = "/".join((root, *parts))
    return folders.setdefault(location, Folder(location))


def scan_landing(pipeline: str) -> Iterator[list[Folder]]:
    """Yield the micro-batches' landing folders, some at a time, without the folder of compacted files.

    The files of a portion are listed when it is asked for.
    """
    root = lake.uri("landing", pipeline)
    found = [each for each in lake.list_entries(root, recursive=False) if each.is_folder and each.name != COMPACTED]
    with ThreadPoolExecutor(_LISTINGS) as pool:
        for start in range(0, len(found), _AT_ONCE):
            folders = pool.map(partial(_landing_folder, root), found[start : start + _AT_ONCE])
            yield [*folders]


def _landing_folder(root: str, listed: lake.Entry) -> Folder:
    folder = Folder(f"{root}/{listed.name}")
    folder.add(listed, "")
    for entry in lake.list_entries(folder.location):
        folder.add(entry, entry.name)
    return folder


def _with_content(folders: dict[str, Folder]) -> dict[str, Folder]:
    return {location: folder for location, folder in folders.items() if folder.has_content()}


def scan_files(*parts: str, hidden: bool = False) -> dict[str, Folder]:
    """Return the visible files of a folder below the lake by their location, each as a folder with one file.

    With `hidden` the others.
    """
    root = lake.uri(*parts)
    folders = {}
    for entry in lake.list_entries(root):
        if not entry.is_folder and lake.is_visible(entry.name) is not hidden:
            folders[f"{root}/{entry.name}"] = Folder(
                f"{root}/{entry.name}",
                {entry.name.rsplit("/", 1)[-1]: entry.bytes},
                entry.bytes,
                entry.modified or EPOCH,
            )
    return folders


COMPACTED = "compacted"
"""Name of the folder with compacted landing files, beside those of the micro-batches."""
