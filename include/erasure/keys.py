"""Keys to forget: where they occur in bytes, texts and JSON, and their salted hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from include.errors import UsageError

FORGOTTEN = "(erased)"
"""What replaces a key in the ledger."""

_FATES = {"archived", "empty", "quarantined", "gaps", "erased"}
_RECORDS = {*_FATES, "in_ranges", "replayed", "lost", "compacted_since", "from_offset", "until_offset", "partition"}
_OTHERS = {"matched", "pending", "late", "unexplained", "rows", "added", "removed", "changed", "unexpected_count"}
COUNTS = frozenset({*_RECORDS, *_OTHERS})
"""Names of numbers in the ledger's JSON that count or locate records: none is a key, whatever its value."""

_WORD = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Return the keys of the command line and those of a file, one per line, each once.

    Raises UsageError without any, for an empty one, and for a file that is not there or not UTF-8.
    """
    lines: list[str] = []
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{file} cannot be read: {error}", remedy="a text file in UTF-8, one key a line"
            ) from error
    keys = tuple(dict.fromkeys([*given, *(line for line in lines if line)]))
    if not keys:
        raise UsageError("no key is named", remedy="--key KEY, or --keys-file FILE with one key a line")
    if any(not key.strip() for key in keys):
        raise UsageError("a key is empty", remedy="name what is to be erased: --key KEY")
    return keys


def hashes_of(keys: Iterable[str], salt: str) -> list[str]:
    """Return the salted SHA-256 of each key, in the order of the hashes."""
    return sorted(hashlib.sha256(bytes.fromhex(salt) + key.encode()).hexdigest() for key in keys)


class Keys:
    """Keys to look for. An occurrence is one of the key alone: the key `cam-1` does not occur in `cam-10`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        self._forms = sorted({form for key in keys for form in _forms(key)}, key=len, reverse=True)

    def named_in_bytes(self, value: bytes | None) -> bool:
        """Return whether one of the keys occurs in a value, in UTF-8 or as JSON escapes it."""
        return value is not None and any(_occurs(form, value) for form in self._forms)

    def named_in(self, value: str) -> bool:
        """Return whether one of the keys occurs in a text."""
        return self.named_in_bytes(value.encode("utf-8", "surrogatepass"))

    def without(self, value: Any) -> Any:
        """Return a JSON value in which each text that names one of the keys is replaced."""
        if isinstance(value, str):
            return FORGOTTEN if self.named_in(value) else value
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            return {self.without(name): self._without_in(name, each) for name, each in value.items()}
        return value if isinstance(value, bool) or str(value) not in self.keys else FORGOTTEN

    def _without_in(self, name: str, value: Any) -> Any:
        return value if isinstance(value, int) and name in COUNTS else self.without(value)


def _forms(key: str) -> set[bytes]:
    plain = {json.dumps(key, ensure_ascii=ascii)[1:-1].encode() for ascii in (True, False)}
    return plain | {key.encode()}


def _occurs(form: bytes, value: bytes) -> bool:
    at = value.find(form)
    while at >= 0:
        before, after = value[at - 1 : at], value[at + len(form) : at + len(form) + 1]
        if not (_continues(before, form[:1]) or _continues(after, form[-1:])):
            return True
        at = value.find(form, at + 1)
    return False


def _continues(neighbour: bytes, end: bytes) -> bool:
    return bool(neighbour) and neighbour[0] in _WORD and end[0] in _WORD
