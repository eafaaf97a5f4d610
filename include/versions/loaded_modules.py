"""Which modules of the project a process runs, and which of their files have changed since."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from include.settings import REPOSITORY

_PACKAGES = ("include", "spark_jobs", "expectations")

Code = Mapping[str, str]
"""Twelve hex digits of the SHA-256 of each module's file, by its path in the repository."""


def loaded_code(besides: Iterable[Path] = ()) -> dict[str, str]:
    """Return the project's modules that this process has imported, with the present hashes of their files.

    `besides` are files of modules that its Python workers import.
    """
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    files.update(besides)
    inside = (file.relative_to(REPOSITORY) for file in files if file.is_relative_to(REPOSITORY))
    paths = sorted(str(path) for path in inside if path.parts[0] in _PACKAGES and path.suffix == ".py")
    return {path: digest for path in paths if (digest := _digest(path))}


def changed_code(code: Code) -> dict[str, str]:
    """Return the modules whose files differ from the noted hashes, with the present ones; empty for a missing file."""
    return {path: now for path, noted in code.items() if (now := _digest(path)) != noted}


def _digest(path: str) -> str:
    try:
        status = (REPOSITORY / path).stat()
    except OSError:
        return ""
    return _digest_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _digest_of(path: str, _changed_ns: int, _size: int, _inode: int) -> str:
    try:
        return hashlib.sha256((REPOSITORY / path).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""
