"""The lake: where everything lies below its URI, and the only file operations on it outside Spark.

Layout:
    tables/<table>/<partition path>/<revision>/*           registered data and revisions on their way
    landing/<pipeline>/<batch>/outcome=…/…                 files of micro-batches
    landing/<pipeline>/compacted/<outcome>/<day>-….parquet files of many micro-batches of a closed day
    quarantine/<pipeline>/<batch>.parquet                  records kept whole
    quarantine/<pipeline>/<day>-….parquet                  those of a closed day
    delta/<pipeline>                                       a Delta table; its log says which files are its own
    checkpoints/<pipeline>/g<generation>/<query>           Spark's; beside it <view>.base-<token>
    received/<pipeline>/<connection>-<n>.lines             what a socket sent, as it came
    reports/<pipeline>/<interval>.html
    lost+found/<time>/…                                    what `doctor --repair` moved out of the way
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from include.errors import UsageError
from include.lake import object_store
from include.settings import settings

SAFE_VALUE = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}"
"""Values from data that may become a folder name as they are, unescaped; everything else goes to quarantine."""

_SAFE_PART = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._:+=-]{0,199}")


def root() -> str:
    """The lake's URI without a trailing slash."""
    return settings().lake_uri


def uri(*parts: str) -> str:
    """The URI of a path below the lake. Raises UsageError for a part that would leave it."""
    for part in "/".join(parts).split("/"):
        if not _SAFE_PART.fullmatch(part):
            raise UsageError(f"not a safe path below the lake: {'/'.join(parts)!r}")
    return "/".join((settings().lake_uri, *parts))


def filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI and the path on it."""
    parts = urlsplit(location)
    if object_store.holds(location):
        return object_store.filesystem(location)
    if parts.scheme == "file":
        return fs.LocalFileSystem(), unquote(parts.path)
    found, path = fs.FileSystem.from_uri(location)
    return found, path


_P = ParamSpec("_P")
_R = TypeVar("_R")


def reaching_lake(operation: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise ServiceUnreachable where a store refuses or does not answer: its files are neither missing nor damaged."""

    @wraps(operation)
    def reach(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return operation(*arguments, **options)
        except OSError as error:
            if refused := object_store.unreachable(root(), str(error)):
                raise refused from error
            raise

    return reach


@dataclass(frozen=True)
class LakeFile:
    """A file found below a URI."""

    name: str
    """Path below the URI that was listed."""
    bytes: int


@reaching_lake
def list_files(location: str) -> list[LakeFile]:
    """Files below a URI that readers take for data, sorted; none when the folder does not exist."""
    system, path = filesystem(location)
    found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(
        (
            LakeFile(info.path[len(path) :].lstrip("/"), info.size)
            for info in found
            if info.type == fs.FileType.File and is_visible(info.base_name)
        ),
        key=lambda file: file.name,
    )


@dataclass(frozen=True)
class Entry:
    """A file or folder found below a URI, hidden ones included."""

    name: str
    """Path below the URI that was listed."""
    is_folder: bool
    bytes: int
    modified: datetime | None
    """None for a folder of an object store, which is nothing but the names of its files."""


@reaching_lake
def list_entries(location: str, *, recursive: bool = True) -> list[Entry]:
    """Everything below a URI, sorted; nothing when the folder does not exist."""
    system, path = filesystem(location)
    found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
    return sorted(
        (
            Entry(
                info.path[len(path) :].lstrip("/"),
                info.type == fs.FileType.Directory,
                info.size or 0,
                info.mtime,
            )
            for info in found
        ),
        key=lambda entry: entry.name,
    )


@reaching_lake
def state(location: str) -> tuple[int, datetime]:
    """Size in bytes and modification time of a file. Raises FileNotFoundError."""
    system, path = filesystem(location)
    info = system.get_file_info(path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(location)
    return info.size, info.mtime


def is_visible(name: str) -> bool:
    """Whether readers of a folder take this file for data."""
    return not name.rsplit("/", 1)[-1].startswith((".", "_"))


@reaching_lake
def exists(location: str) -> bool:
    """Whether something lies there."""
    system, path = filesystem(location)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def has_root() -> bool:
    """Whether there is a place for the lake: a bucket must be there, folders are made when they are first written."""
    return not object_store.holds(root()) or exists("/".join(root().split("/")[:3]))


@reaching_lake
def is_folder(location: str) -> bool:
    """Whether a folder lies there."""
    system, path = filesystem(location)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


@reaching_lake
def size(location: str) -> int:
    """Size of a file, bytes."""
    system, path = filesystem(location)
    return int(system.get_file_info(path).size)


def make_parents(location: str) -> None:
    """Make the folders above a file that is to be written; an object store has none to make."""
    if not object_store.holds(location):
        system, path = filesystem(location)
        system.create_dir(path.rsplit("/", 1)[0], recursive=True)


@reaching_lake
def move(source: str, target: str) -> None:
    """Move a file or folder; the target's parents are made.

    In an object store each file is copied, then deleted: a folder moves file by file, and a crash may leave some
    of them at both places, never a file that is only half there.
    """
    system, path = filesystem(source)
    _, target_path = filesystem(target)
    make_parents(target)
    if object_store.holds(source) and system.get_file_info(path).type == fs.FileType.Directory:
        for entry in list_entries(source):
            if not entry.is_folder:
                system.move(f"{path}/{entry.name}", f"{target_path}/{entry.name}")
        delete(source)
    else:
        system.move(path, target_path)


@reaching_lake
def delete(location: str) -> None:
    """Delete a folder with all it holds; nothing happens when there is none. Only below the lake."""
    if not location.startswith(settings().lake_uri + "/"):
        raise UsageError(f"{location} is not in the lake {settings().lake_uri}")
    system, path = filesystem(location)
    kind = system.get_file_info(path).type
    if kind == fs.FileType.Directory:
        system.delete_dir(path)
    elif kind == fs.FileType.File:
        system.delete_file(path)


def delete_file(location: str) -> None:
    """Delete a file of Spark's together with the checksum that Hadoop keeps beside it."""
    folder, _, name = location.rpartition("/")
    delete(location)
    if not object_store.holds(location):
        delete(f"{folder}/.{name}.crc")


def prune_empty(location: str, before: datetime) -> list[str]:
    """Delete the folders below a URI that hold no file and did not change since `before`; their locations.

    None in an object store, where a folder is gone with its last file.
    """
    entries = list_entries(location)
    files = [entry.name for entry in entries if not entry.is_folder]
    holding = {name.rsplit("/", depth)[0] for name in files for depth in range(1, name.count("/") + 1)}
    empty = [e for e in entries if e.is_folder and e.name not in holding and e.modified and e.modified < before]
    for entry in sorted(empty, key=lambda entry: -entry.name.count("/")):
        if not list_entries(f"{location}/{entry.name}", recursive=False):
            delete(f"{location}/{entry.name}")
    return [f"{location}/{entry.name}" for entry in empty]


@reaching_lake
def sha256(location: str) -> str:
    """The SHA-256 of a file's bytes, hexadecimal."""
    system, path = filesystem(location)
    digest = hashlib.sha256()
    with system.open_input_stream(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_text(location: str, text: str) -> None:
    """Write a text file, replacing it."""
    write_bytes(location, text.encode())


@reaching_lake
def write_bytes(location: str, content: bytes) -> None:
    """Write a file, replacing it; it appears when it is whole."""
    system, path = filesystem(location)
    make_parents(location)
    temporary = path + ".tmp"
    with system.open_output_stream(temporary) as file:
        file.write(content)
    system.move(temporary, path)


@reaching_lake
def read_text(location: str) -> str:
    """A text file's content. Raises FileNotFoundError."""
    system, path = filesystem(location)
    with system.open_input_stream(path) as file:
        return bytes(file.read()).decode()
