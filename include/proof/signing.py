"""Sign proofs with an Ed25519 key from a file that only its owner can read (`TIDEMARK_PROOF_KEY`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from include.errors import UsageError
from include.settings import settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

UNSIGNED = "no key is set: TIDEMARK_PROOF_KEY"


def signature_of(message: bytes) -> dict[str, str]:
    """Return the signature of a message as proofs have it. Raises UsageError for a key that cannot be used."""
    key = _key()
    if key is None:
        return {"algorithm": "none", "why": UNSIGNED}
    return {"algorithm": "Ed25519", "public_key": _public(key), "value": key.sign(message).hex()}


def own_public_key() -> str:
    """Return the public key of the set key, in hexadecimal; empty when none is set."""
    key = _key()
    return _public(key) if key is not None else ""


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def _key() -> Ed25519PrivateKey | None:
    path = settings().proof_key
    return _read(path) if path is not None else None


def _read(path: Path) -> Ed25519PrivateKey:
    # Imported here: most commands sign nothing.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise UsageError(f"TIDEMARK_PROOF_KEY: {path}: {error.strerror}", remedy="name a readable file") from None
    if mode & 0o077:
        raise UsageError(f"TIDEMARK_PROOF_KEY: {path} is readable by others", remedy=f"chmod 600 {path}")
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"TIDEMARK_PROOF_KEY: {path} holds no Ed25519 key without a password",
            # Never into this file: readers may have its public key, and openssl overwrites without a question.
            remedy="name a file with another key: of one with a password, openssl pkey takes it off "
            f"(openssl pkey -in {shlex.quote(str(path))} -out NEW_FILE); else make one "
            "(openssl genpkey -algorithm ed25519 -out NEW_FILE), whose public key readers need then",
        )
    return key
