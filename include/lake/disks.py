"""The disks of this home and its lake: what is free on each, the error of one that is full, and moves between them."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from include.errors import DiskFull
from include.settings import settings

NO_SPACE = "No space left on device"
"""The system's words, which Java and PostgreSQL repeat."""

LEAST = 16 * 2**20
"""Bytes with less of which a disk is full: PostgreSQL's write-ahead log grows by as many at a time."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""What file systems without hard links answer."""

_GIB, _MIB = 2**30, 2**20


@dataclass(frozen=True)
class Disk:
    """A file system, by a folder that lies on it."""

    folder: Path
    free: int
    """Bytes that a user may write who is not root: PostgreSQL never is."""
    size: int
    takes_files: bool = True
    """Whether it takes any more files, however small."""

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """Return the disk of a folder that may not exist yet. Raise OSError."""
        there = _existing(folder)
        found = os.statvfs(there)
        # Some file systems count no files.
        takes_files = found.f_favail > 0 or not found.f_files
        return cls(there, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, takes_files)

    @property
    def is_full(self) -> bool:
        """Whether a writer soon finds no space on it."""
        return self.free < LEAST or not self.takes_files

    def __str__(self) -> str:
        full = "" if self.takes_files else ", which takes no more files"
        return f"{amount(self.free)} of disk free in {self.folder}{full}"


def takes_links(folder: Path) -> bool:
    """Return whether the disk of a folder, which may not exist yet, has hard links. Raise OSError."""
    with tempfile.NamedTemporaryFile(dir=_existing(folder), prefix=".probe-") as probe:
        link = Path(f"{probe.name}-link")
        try:
            link.hardlink_to(probe.name)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        link.unlink()
    return True


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def amount(size: int) -> str:
    """Return a number of bytes in GiB, or in MiB where that would round it to nothing."""
    return f"{size / _GIB:.0f} GiB" if size >= 10 * _GIB else f"{size / _MIB:,.0f} MiB"


def disks() -> list[Disk]:
    """Return the disks of this home and of a lake in folders, each by the first of their folders that lies on it."""
    found: dict[int, Disk] = {}
    for folder in _folders():
        # It may be removed meanwhile.
        with suppress(OSError):
            disk = Disk.of(folder)
            found.setdefault(disk.folder.stat().st_dev, disk)
    return list(found.values())


def _folders() -> Iterator[Path]:
    """Yield home and lake, each before the folders in it: any of these may be a disk of its own."""
    lake, separator, path = settings().lake_uri.partition("://")
    for root in (settings().home, *([Path(path)] if separator and lake == "file" else ())):
        yield root
        with suppress(OSError):
            yield from sorted(each for each in root.iterdir() if each.is_dir())


def move_on_disks(system: fs.FileSystem, source: str, target: str) -> None:
    """Move a file or folder within a file system that is no object store, also to another disk. Raise OSError."""
    try:
        system.move(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_to_disk(Path(source), Path(target))


def _move_to_disk(source: Path, target: Path) -> None:
    """Copy a file or folder beside the target, then put the copy in its place and delete the source.

    A crash may leave both, but never a partial one: the copy has a hidden name until it has reached the disk.
    """
    copy = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        _copy(source, copy)
        copy.rename(target)
        _sync(target.parent)
    except BaseException:
        _remove(copy)
        raise
    _remove(source)


def _copy(source: Path, target: Path) -> None:
    # Not by `shutil.copytree`, whose error does not tell that a disk is full.
    if source.is_dir():
        target.mkdir()
        for each in source.iterdir():
            _copy(each, target / each.name)
        shutil.copystat(source, target)
    else:
        shutil.copy2(source, target)
    _sync(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def full_disk(place: str = "", pipeline: str = "") -> DiskFull:
    """Return the error of a write that found no space: at a place, if it is known, or on the disks that are full now.

    The writer may have removed its half of a file, so that none is any more.
    """
    full = [str(each.folder) for each in disks() if each.is_full]
    anywhere = f"below {settings().lake_uri}, or in Spark's local folder below {settings().home / 'tmp'}"
    where = place or ", ".join(full) or anywhere
    return DiskFull(
        f"No space left on device: {where}; nothing half written was committed",
        remedy="make room there, then start it again: it continues after what is committed",
        pipeline=pipeline,
    )


def check_room(folder: Path, pipeline: str) -> None:
    """Raise DiskFull when the disk of a folder is full, before something of a pipeline begins that needs it."""
    if Disk.of(folder).is_full:
        raise full_disk(str(folder), pipeline)
