"""Temporary folders of Spark drivers: one per driver below the home folder, removed once the driver has ended.

Spark removes its files when it ends, but not when it is killed. So a driver locks its folder; the system releases the
lock however the driver ends. Folders without a lock are removed when a driver is submitted, when one has ended, and
by housekeeping.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from pathlib import Path

from include.settings import settings

VARIABLE = "TIDEMARK_DRIVER_FOLDER"
"""Environment variable that names a driver's folder."""

STARTING = 600.0
"""Seconds that a driver may take from its submission until it holds its folder."""

_LOCK = ".driver"


def make(job: str) -> Path:
    """Make a folder for a driver that is about to be submitted, and return it."""
    folder = _root() / f"{job}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def hold() -> None:
    """Lock the folder of this process until it ends; do nothing where it was given none."""
    if not (given := os.environ.get(VARIABLE)):
        return
    folder = Path(given)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = folder / f"{_LOCK}.{os.getpid()}"
    # Never closed: the lock lasts as long as the process. Renamed once it is held, so that nobody finds it free.
    fcntl.flock(os.open(beside, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    beside.rename(folder / _LOCK)


def sweep() -> list[Path]:
    """Remove dead drivers' folders and return them; concurrent sweeps share the work."""
    # Nothing else belongs there: a file is left to whoever put it there.
    dead = [folder for folder in _root().glob("*") if folder.is_dir() and not _is_in_use(folder)]
    for folder in dead:
        # Another sweep may be removing it.
        shutil.rmtree(folder, ignore_errors=True)
    return dead


def _is_in_use(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        # The driver is not up yet, or was killed before.
        return time.time() - _changed_at(folder) < STARTING
    except PermissionError:
        # Of a driver of another user, such as root, who removes it.
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        # Another sweep has removed it meanwhile.
        return float("-inf")


def _root() -> Path:
    return settings().home / "tmp"
