"""SHA-256 of files, and the comparison with what was noted of them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from contextlib import suppress
from typing import Any, BinaryIO

from include.lake.files import filesystem, raises_unreachable


@raises_unreachable()
def sha256(location: str) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    system, path = filesystem(location)
    # Otherwise pyarrow would decompress what ends in .gz.
    with system.open_input_stream(path, compression=None) as file:
        return _sha256_of(file)


def has_sha256(location: str, noted: str) -> bool:
    """Return whether a file has the SHA-256, in hexadecimal, that was noted when it was written.

    Of files that end in `.gz`, earlier code noted the SHA-256 of their decompressed content: it counts as well.
    """
    if sha256(location) == noted:
        return True
    return location.endswith(".gz") and _decompressed_sha256(location) == noted


@raises_unreachable()
def _decompressed_sha256(location: str) -> str | None:
    """Return the SHA-256 of a gzip file's content; None when it cannot be decompressed."""
    system, path = filesystem(location)
    with system.open_input_stream(path, compression=None) as file, suppress(EOFError, gzip.BadGzipFile, zlib.error):
        content: Any = gzip.GzipFile(fileobj=file)
        return _sha256_of(content)
    return None


def _sha256_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
