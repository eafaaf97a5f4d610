"""Keys to forget: where they occur in bytes, texts and JSON, and their salted hashes."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from include.errors import UsageError
from include.ledger.listings import LEAST_ABBREVIATED, hashed

FORGOTTEN = "(erased)"
"""What replaces a key in the ledger."""

_SHORT_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,5})(\.[0-9]+)?")

_ESCAPED = r"(?:(?:\\u[0-9a-fA-F]{4})+|\\[\"\\/bfnrt])"
_ESCAPE, _ESCAPE_BEFORE = re.compile(_ESCAPED), re.compile(_ESCAPED + r"\Z")
_PAIR = len("\\ud83d\\ude00")
_SIGNS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_WITHOUT_SPACES = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
"""How the names of letters begin whose scripts do not divide words."""

_NESTED = 3
"""How many times JSON may be a string within JSON."""


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Return the keys of the command line and those of a file, one per line, each once.

    Raises UsageError without any, for an empty one, and for a file that is not there or not UTF-8.
    """
    lines: list[str] = []
    if file is not None:
        try:
            # Editors of Windows put a byte-order mark before the first key.
            lines = file.read_text(encoding="utf-8-sig").split("\n")
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
        # Reports record a long key so.
        self.forms = (*self.keys, *(hashed(key) for key in self.keys if len(json.dumps(key)) >= LEAST_ABBREVIATED))

    @cached_property
    def words(self) -> Keys:
        """Those that are no short numbers: such a number also counts something, or is a part of a time."""
        return Keys([key for key in self.keys if not _SHORT_NUMBER.fullmatch(key)])

    def named_in_bytes(self, value: bytes | None) -> bool:
        """Return whether one of the keys occurs in a value, in UTF-8 or in any spelling of JSON's escapes."""
        # Bytes that are no UTF-8, as lengths in Avro, become single characters of no word: the text around them stays.
        return value is not None and self.named_in(value.decode("utf-8", "surrogateescape"))

    def named_in(self, value: str) -> bool:
        """Return whether one of the keys occurs in a text, as it is or escaped by JSON."""
        return any(_occurs(key, text) for text in _readings(value) for key in self.forms)

    def is_one(self, value: Any) -> bool:
        """Return whether a value of a listed row's key, as a text, is one of the keys; long ones are abbreviated."""
        if value is None:
            return False
        said = value if isinstance(value, str) else json.dumps(value)
        return any(said == form or (form not in self.keys and said.endswith(form)) for form in self.forms)

    def without(self, value: Any) -> Any:
        """Return a JSON value in which each text that names one of the keys is replaced; names of values stay."""
        if isinstance(value, str):
            return FORGOTTEN if self.named_in(value) else value
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            return {name: self.without(each) for name, each in value.items()}
        return value


def _readings(text: str) -> Iterator[str]:
    """Yield a text as it is, then with its escapes decoded, as often as they are nested."""
    yield text
    for _ in range(_NESTED):
        if (decoded := _ESCAPE.sub(_unescaped, text)) == text:
            return
        yield (text := decoded)


def _unescaped(escape: re.Match[str]) -> str:
    sign = escape[0][1]
    if sign != "u":
        return _SIGNS.get(sign, sign)
    # In one piece: a character beyond the first 65,536 is a pair of escapes.
    units = bytes.fromhex(escape[0].replace("\\u", ""))
    return units.decode("utf-16-be", "surrogatepass")


def _occurs(key: str, text: str) -> bool:
    at = text.find(key)
    while at >= 0:
        if not (_continues(_before(text, at), key[0]) or _continues(_after(text, at + len(key)), key[-1])):
            return True
        at = text.find(key, at + 1)
    return False


def _before(text: str, at: int) -> str:
    near = text[max(0, at - _PAIR) : at]
    escape = _ESCAPE_BEFORE.search(near) if "\\" in near else None
    return _unescaped(escape)[-1] if escape else near[-1:]


def _after(text: str, at: int) -> str:
    escape = _ESCAPE.match(text, at)
    return _unescaped(escape)[0] if escape else text[at : at + 1]


def _continues(neighbour: str, end: str) -> bool:
    return _is_of_word(neighbour) and _is_of_word(end)


def _is_of_word(character: str) -> bool:
    # What such a script has beside a key says nothing: a name that is passed over would stay.
    if character == "" or unicodedata.name(character, "").startswith(_WITHOUT_SPACES):
        return False
    # Marks, as accents and vowel signs of many scripts, belong to the letter before them.
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"
