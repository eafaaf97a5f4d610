"""Paths below the lake's URI, and file operations on them.

Layout:
    tables/<table>/<partition path>/<revision>/*           registered revisions, and those not registered yet
    landing/<pipeline>/<batch>/fate=…/…                    files of micro-batches
    landing/<pipeline>/compacted/<fate>/<day>-….parquet merged files of a closed day's micro-batches
    quarantine/<pipeline>/<batch>.parquet                  whole records of a micro-batch
    quarantine/<pipeline>/<day>-….parquet                  whole records of a closed day
    delta/<pipeline>                                       a Delta table; its log lists its files
    checkpoints/<pipeline>/g<generation>/<query>           a query's checkpoint; beside it <view>.base-<token>
    received/<pipeline>/<connection>-<opened>-<n>.lines    lines of a socket, unchanged
    reports/<pipeline>/<interval>.html
    proofs/<pipeline>/<interval>-<build>.json              the proof of what a build registered
    replaced/<pipeline>/<time>/…                           what housekeeping merged, while copies of the ledger name it
    erasures/<pipeline>/<time>-….json                      that something was erased, for a ledger that has forgotten it
    lost+found/<time>/…                                    what `doctor --repair` moved away
"""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from include.errors import UsageError
from include.lake import large_objects, object_store
from include.lake.changing_folders import delete_folder
from include.lake.disks import full_disk, move_on_disks
from include.settings import settings

SAFE_VALUE = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}"
"""Values from data that may become folder names unescaped; records with any other value go to quarantine."""

_SAFE_PART = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._:+=-]{0,199}")


def root() -> str:
    """Return the lake's URI without a trailing slash."""
    return settings().lake_uri


def uri(*parts: str) -> str:
    """Return the URI of a path below the lake. Raise UsageError for an unsafe part, such as `..`."""
    for part in "/".join(parts).split("/"):
        if not _SAFE_PART.fullmatch(part):
            raise UsageError(f"not a safe path below the lake: {'/'.join(parts)!r}")
    return "/".join((settings().lake_uri, *parts))


def below_lake(location: str) -> str:
    """Return the path of a URI below the lake, as the ledger stores it."""
    return location.removeprefix(root() + "/")


def is_in_lake(location: str) -> bool:
    """Return whether a URI lies below the lake, as far as its spelling tells."""
    return location.startswith(root() + "/")


def filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI and the path on it."""
    parts = urlsplit(location)
    if object_store.is_bucket_uri(location):
        return object_store.filesystem(location)
    if parts.scheme == "file":
        # A folder of lines is named by any URI. The lake's has no escapes, which Spark would take for names.
        return fs.LocalFileSystem(), unquote(parts.path)
    system, path = fs.FileSystem.from_uri(location)
    return system, path


@contextmanager
def raises_unreachable() -> Iterator[None]:
    """Raise ServiceUnreachable when the object store refuses or does not answer, DiskFull when a disk has no space.

    In a block or a decorated function. Callers must not take such a failure for a missing or damaged file.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise full_disk() from error
        if unreachable := object_store.unreachable_error(root(), str(error)):
            raise unreachable from error
        raise


@dataclass(frozen=True)
class LakeFile:
    """A file below a listed URI."""

    name: str
    """Path below the URI that was listed."""
    bytes: int


@raises_unreachable()
def list_files(location: str) -> list[LakeFile]:
    """Return the visible files below a URI, sorted by name; none when the folder does not exist.

    What lies in a hidden folder is not visible, as for Spark and Hive.
    """
    return [
        LakeFile(entry.name, entry.bytes)
        for entry in list_entries(location)
        if entry.is_file and all(map(is_visible, entry.name.split("/")))
    ]


@dataclass(frozen=True)
class Entry:
    """A file or folder below a listed URI, possibly hidden."""

    name: str
    """Path below the URI that was listed."""
    is_folder: bool
    is_file: bool
    """Neither for a pipe, a socket or a device."""
    bytes: int
    modified: datetime | None
    """None for a folder of an object store, where folders are only parts of file names."""


@raises_unreachable()
def list_entries(location: str, *, recursive: bool = True) -> list[Entry]:
    """Return all files and folders below a URI, sorted by name; none when the folder does not exist."""
    system, path = filesystem(location)
    infos = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
    return sorted(
        (
            Entry(
                info.path[len(path) :].lstrip("/"),
                info.type == fs.FileType.Directory,
                info.type == fs.FileType.File,
                info.size or 0,
                info.mtime,
            )
            for info in infos
        ),
        key=lambda entry: entry.name,
    )


@raises_unreachable()
def size_and_mtime(location: str) -> tuple[int, datetime]:
    """Return size in bytes and modification time of a file. Raise FileNotFoundError."""
    system, path = filesystem(location)
    info = system.get_file_info(path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(location)
    return info.size, info.mtime


def is_visible(name: str) -> bool:
    """Return whether readers of a folder read this file as data: its name begins with neither `.` nor `_`."""
    return not name.rsplit("/", 1)[-1].startswith((".", "_"))


@raises_unreachable()
def exists(location: str) -> bool:
    """Return whether a file or folder exists at a URI."""
    system, path = filesystem(location)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def root_is_available() -> bool:
    """Return whether the lake can be written: a bucket must exist, a folder is created by the first write."""
    return not object_store.is_bucket_uri(root()) or exists("/".join(root().split("/")[:3]))


@raises_unreachable()
def is_folder(location: str) -> bool:
    """Return whether a folder exists at a URI."""
    system, path = filesystem(location)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


@raises_unreachable()
def size(location: str) -> int:
    """Return the size of a file in bytes."""
    system, path = filesystem(location)
    return int(system.get_file_info(path).size)


def make_parents(location: str) -> None:
    """Create the folders above a file that is to be written; an object store needs none."""
    if not object_store.is_bucket_uri(location):
        system, path = filesystem(location)
        system.create_dir(path.rsplit("/", 1)[0], recursive=True)


@raises_unreachable()
def move(source: str, target: str) -> None:
    """Move a file or folder and create the target's parents.

    In an object store, and to another disk, each file is copied, then deleted. A crash may leave a file at both URIs,
    or some files of a folder at the old one, but never a partial file.
    """
    system, path = filesystem(source)
    _, target_path = filesystem(target)
    make_parents(target)
    if not object_store.is_bucket_uri(source):
        move_on_disks(system, path, target_path)
    elif system.get_file_info(path).type == fs.FileType.Directory:
        for entry in list_entries(source):
            if not entry.is_folder:
                large_objects.move(system, f"{path}/{entry.name}", f"{target_path}/{entry.name}")
        delete(source)
    else:
        large_objects.move(system, path, target_path)


@raises_unreachable()
def delete(location: str) -> None:
    """Delete a file, or a folder with its content; do nothing when neither exists.

    Raise UsageError for a URI outside of the lake.
    """
    if not is_in_lake(location):
        raise UsageError(f"{location} is not in the lake {settings().lake_uri}")
    system, path = filesystem(location)
    kind = system.get_file_info(path).type
    if kind == fs.FileType.Directory:
        delete_folder(system, path)
    elif kind == fs.FileType.File:
        system.delete_file(path)


def delete_file(location: str) -> None:
    """Delete a file that Spark wrote, and the checksum file that Hadoop wrote beside it."""
    folder, _, name = location.rpartition("/")
    delete(location)
    if not object_store.is_bucket_uri(location):
        delete(f"{folder}/.{name}.crc")


def delete_empty_folders(location: str, before: datetime) -> list[str]:
    """Delete the folders below a URI that hold no file and have not changed since `before`; return their URIs.

    Not in an object store, where the names of emptied folders have no age.
    """
    if object_store.is_bucket_uri(location):
        return []
    deleted = []
    # Folder by folder: all entries below a table or a landing may not fit into memory.
    for entry in list_entries(location, recursive=False):
        if entry.is_folder:
            folder = f"{location}/{entry.name}"
            deleted += delete_empty_folders(folder, before)
            if entry.modified and entry.modified < before and not list_entries(folder, recursive=False):
                delete(folder)
                deleted.append(folder)
    return deleted


def write_text(location: str, text: str) -> None:
    """Write a text file in UTF-8, replacing an existing one atomically."""
    write_bytes(location, text.encode())


@raises_unreachable()
def write_bytes(location: str, content: bytes) -> None:
    """Write a file, replacing an existing one atomically."""
    system, path = filesystem(location)
    if object_store.is_bucket_uri(location):
        object_store.put(system, path, content)
        return
    # Each writer's own: several may write the same file at once.
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        make_parents(location)
        with system.open_output_stream(temporary) as file:
            file.write(content)
        system.move(temporary, path)
    except OSError as error:
        with suppress(OSError):
            system.delete_file(temporary)
        if error.errno == errno.ENOSPC:
            raise full_disk(location) from error
        raise


def read_text(location: str) -> str:
    """Return a text file's content. Raise FileNotFoundError."""
    return read_bytes(location).decode()


@raises_unreachable()
def read_bytes(location: str, *, decompressed: bool = False) -> bytes:
    """Return a file's content, or what is compressed in it, by the end of its name. Raise FileNotFoundError."""
    system, path = filesystem(location)
    with system.open_input_stream(path, compression="detect" if decompressed else None) as file:
        return bytes(file.read())
