"""Check a proof with the settings of this machine: its lake and its key."""

from __future__ import annotations

from pathlib import Path

from include import lake
from include.errors import UsageError
from include.proof import verify
from include.proof.signing import own_public_key


def check_proof(file: str, lake_uri: str = "", public_key: str = "") -> verify.Report:
    """Check a proof in a file or at a URI of the lake; what is not given is taken from the settings.

    Raises UsageError for a file that cannot be read.
    """
    files = verify.open_lake(lake_uri) if lake_uri else verify.Lake(*lake.filesystem(lake.root()))
    return verify.check(_read(file), files, public_key or own_public_key())


def _read(file: str) -> bytes:
    try:
        return lake.read_bytes(file) if "://" in file else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or 'cannot be read'}", remedy="name the file of a proof") from None
