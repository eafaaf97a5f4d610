"""Convert the text of an environment variable: to a path, a number, one of a few words, a secret.

Every command reads the settings, and a library for this takes longer to import than a command that only reads may take.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

_CONTACT = re.compile(r"[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+|https?://[\w-]+(\.[\w-]+)*(:\d{1,5})?(/[!#-'*-~]*)?", re.ASCII)
"""A contact that may stand in brackets in a header."""

_PASSWORD = re.compile(r"(://[^:/@]*:)[^\s?]*@")
"""SQLAlchemy also takes passwords with a slash or a colon in them; libpq takes several hosts."""

_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")

_BUCKET_PATH = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*")

_STORES = ("s3", "s3a", "file", "hdfs", "abfs", "abfss", "gs")
"""Schemes that both Hadoop and Arrow read."""

_Number = TypeVar("_Number", int, float)


def masked(address: str) -> str:
    """Return an address as it may be printed: `***` for a password before its host or among its parameters."""
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1***@", address))


class Secret:
    """A text that does not show when it is printed, logged or formatted."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __str__(self) -> str:
        return "**********" if self._text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)


def setting(default: Any, description: str, of: Callable[[str], Any] = str, *, secret: bool = False) -> Any:
    """Return the field of a setting; `of` converts its text, or raises ValueError with what is wrong."""
    return field(default=default, metadata={"description": description, "of": of, "secret": secret})


def at_least(least: float) -> Callable[[str], float]:
    """Return a converter to a number of at least `least`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("Input should be a valid number, unable to parse string as a number") from None
        return _bounded(value, least)

    return number


def whole_at_least(least: int) -> Callable[[str], int]:
    """Return a converter to a whole number of at least `least`."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("Input should be a valid integer, unable to parse string as an integer") from None
        return _bounded(value, least)

    return whole


def _bounded(value: _Number, least: float) -> _Number:
    # Written so that NaN, which is neither smaller nor larger, is refused.
    if not value >= least:
        raise ValueError(f"Input should be greater than or equal to {least:g}")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """Return a converter that accepts one of these words."""

    def word(text: str) -> str:
        if text not in words:
            *others, last = map(repr, words)
            raise ValueError(f"Input should be {', '.join(others)} or {last}")
        return text

    return word


def yes_or_no(text: str) -> bool:
    """Return whether a word means yes or no. Raise ValueError for any other word."""
    if (word := text.strip().lower()) in ("1", "on", "t", "true", "y", "yes"):
        return True
    if word in ("0", "off", "f", "false", "n", "no"):
        return False
    raise ValueError("Input should be a valid boolean, unable to interpret input")


def absolute_path(text: str) -> Path:
    """Return a text as an absolute path; `~` is the user's home."""
    return Path(text).expanduser().absolute()


def program(text: str) -> Path:
    """Return the path of an executable file. Raise ValueError for any other file."""
    path = Path(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ValueError("not an executable file; name the path of a spark-submit")
    return path


def store_uri(text: str) -> str:
    """Return a path, or the URI of a folder in a store; of a bucket as Hadoop names it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    if scheme not in _STORES:
        raise ValueError(f"{scheme}:// is not a store; write a path, or a URI of {', '.join(_STORES)}")
    if scheme not in ("s3", "s3a"):
        return text
    rest = rest.rstrip("/")
    if not _BUCKET_PATH.fullmatch(rest):
        raise ValueError("not a path in a bucket; write s3a://bucket/path, and credentials as AWS_… variables")
    return f"s3a://{rest}"


def postgresql_url(text: str) -> Secret:
    """Return the URL of a PostgreSQL server. Raise ValueError for any other text."""
    parsed = _parse_url(text)
    if parsed is None:
        raise ValueError("not a URL; write postgresql://user:password@host:port")
    if parsed.scheme.partition("+")[0] != "postgresql":
        raise ValueError("only PostgreSQL is supported: postgresql://user:password@host:port")
    return Secret(text)


def http_url(text: str) -> Secret | None:
    """Return an HTTP URL; None for an empty text. Raise ValueError for any other text."""
    if not text:
        return None
    parsed = _parse_url(text)
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("not a URL; write https://[user:password@]host[:port][/path]")
    return Secret(text)


def receiver_url(*schemes: str) -> Callable[[str], Secret | None]:
    """Return a converter to a receiver's URL with one of these schemes; an empty text becomes None."""

    def receiver(text: str) -> Secret | None:
        if not text:
            return None
        parts = _parse_url(text)
        if not parts or parts.scheme not in schemes or not (parts.path if parts.scheme == "file" else parts.hostname):
            raise ValueError(f"not a URL; write {schemes[-1]}://host[:port]")
        return Secret(text)

    return receiver


def check_contact(contact: str) -> str:
    """Return a contact as a header states it. Raise ValueError when it is neither an address nor a page."""
    if not all(_CONTACT.fullmatch(part) for part in contact.split()):
        raise ValueError("not a contact; write an e-mail address, an https://… page, or both with a space")
    return " ".join(contact.split())


def _parse_url(text: str) -> SplitResult | None:
    """Return the parts of a URL; None for any other text."""
    try:
        parsed = urlsplit(text)
        # Reading the port validates it.
        return parsed if "://" in text and (parsed.port is None or parsed.port > 0) else None
    except ValueError:
        return None
