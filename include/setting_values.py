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

from include.errors import UsageError
from include.times import parse_duration

_CONTACT = re.compile(r"[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+|https?://[\w-]+(\.[\w-]+)*(:\d{1,5})?(/[!#-'*-~]*)?", re.ASCII)
"""A contact that may stand in brackets in a header."""

_PASSWORD = re.compile(r"(://[^:/@]*:)\S*@")
"""SQLAlchemy also takes passwords with a slash or a colon in them; libpq takes several hosts."""

_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")

_HOST_AND_PORT = r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}"

_ADDRESSES = rf"{_HOST_AND_PORT}(,{_HOST_AND_PORT})*"

_MASTER = re.compile(rf"local(\[([1-9]\d*|\*)(\s*,\s*\d+)?\])?|yarn|spark://{_ADDRESSES}|k8s://(https?://)?[\w.\[-]\S*")
"""The masters that Spark knows by these words, except those of its own tests."""

_BUCKET_PATH = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*")

_NO_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})|%00")
"""What a URL has no meaning for: libpq refuses it, and quotes it with the password that it is in."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

NOT_IN_LAKES = "%#?*[]{}\\'`"
"""Characters that no lake's path may have: an escape or the end of a path to a reader of URIs, a pattern to Hadoop, a
quote to Spark's SQL."""

NOT_IN_FOLDERS = f'{NOT_IN_LAKES},:!$"'
"""Characters that no folder of programs and services may have: those, and what separates paths for Java, Spark and
Kafka, quotes Java's options, or is a part of a jar's URL or of a variable."""

_HEAP = re.compile(r"[1-9]\d{0,9}[kmgt]", re.ASCII | re.IGNORECASE)

_STORES = ("s3", "s3a", "file", "hdfs")
"""Schemes that both Spark's jars and Arrow read: for those of other clouds Spark has no connector."""

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


def between(least: float, most: float) -> Callable[[str], float]:
    """Return a converter to a number of at least `least` and at most `most`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("Input should be a valid number, unable to parse string as a number") from None
        if _bounded(value, least) > most:
            raise ValueError(f"Input should be less than or equal to {most:g}")
        return value

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


def duration(text: str) -> str:
    """Return a duration as it is written, such as `60s`. Raise ValueError for any other text."""
    try:
        parse_duration(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.remedy}") from None
    return text


def heap(text: str) -> str:
    """Return the size of a JVM's heap. Raise ValueError for what the JVM, or Spark, would read as another size."""
    if not _HEAP.fullmatch(text):
        raise ValueError(f"not a size: {text!r}; write it like 1g or 1536m")
    return text


def brokers(text: str) -> str:
    """Return addresses of brokers without blanks. Raise ValueError for what not both of Kafka's clients take."""
    addresses = ",".join(each.strip() for each in text.split(","))
    if not re.fullmatch(_ADDRESSES, addresses, re.ASCII):
        raise ValueError(f"not brokers: {text!r}; write host:port[,host:port]")
    return addresses


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


def folder_of_programs(text: str) -> Path:
    """Return a text as an absolute path. Raise ValueError where Java, Spark or Kafka would read another path in it."""
    path = absolute_path(text)
    _check_readable(str(path), NOT_IN_FOLDERS)
    return path


def file_uri(path: Path) -> str:
    """Return the URI of a path as Spark writes it: Hadoop takes each character as it is, so none is escaped."""
    return f"file://{path}"


def _check_readable(path: str, refused: str) -> None:
    if found := sorted({each for each in path if each in refused or not each.isprintable()}):
        raise ValueError(
            f"{path} has {found[0]!r}, with which Java, Spark or Kafka read another path; name one without it, and in "
            "a URI, too, write each character as it is"
        )
    if other := [each for each in path.split("/")[1:] if not each.strip(" .")]:
        raise ValueError(f"{path} has '/{other[0]}', with which Hadoop names another path; write it without")


def program(text: str) -> Path:
    """Return the path of an executable file. Raise ValueError for any other file."""
    path = absolute_path(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ValueError("not an executable file; name the path of a spark-submit")
    return path


def store_uri(text: str) -> str:
    """Return the URI of a path, or of a folder in a store, without a trailing slash; of a bucket as Hadoop names it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        if begun := _SCHEME.match(text):
            raise ValueError(f"{begun[0]} begins no path; write a path, or a URI like {begun[0]}//…")
        scheme, rest = "file", str(absolute_path(text))
    if scheme not in _STORES:
        raise ValueError(f"{scheme}:// is not a store; write a path, or a URI of {', '.join(_STORES)}")
    rest = rest.rstrip("/")
    if scheme in ("s3", "s3a"):
        if not _BUCKET_PATH.fullmatch(rest):
            raise ValueError("not a path in a bucket; write s3a://bucket/path, and credentials as AWS_… variables")
        return f"s3a://{rest}"
    if not rest or (scheme == "file" and not rest.startswith("/")):
        raise ValueError("not a folder of a lake; write file:///path, or a path; / itself cannot be one")
    _check_readable(rest, NOT_IN_LAKES)
    return f"{scheme}://{rest}"


def master_url(text: str) -> str:
    """Return the URL of a Spark master. Raise ValueError for any other text."""
    if not _MASTER.fullmatch(text):
        raise ValueError("not a master; write local[*], local[N], spark://host:port, yarn or k8s://https://host:port")
    return text


def postgresql_url(text: str) -> Secret:
    """Return the URL of a PostgreSQL server. Raise ValueError for any other text."""
    _check_escaped(text)
    parsed = _parse_url(text)
    if parsed is None or not parsed.hostname:
        raise ValueError("not a URL; write postgresql://user:password@host:port")
    if parsed.scheme.partition("+")[0] != "postgresql":
        raise ValueError("only PostgreSQL is supported: postgresql://user:password@host:port")
    if _NO_ESCAPE.search(text):
        raise ValueError("a % that two hexadecimal digits do not follow, or %00; write a % of a password as %25")
    return Secret(text)


def http_url(text: str) -> Secret:
    """Return an HTTP URL to which paths can be added, so without a query. Raise ValueError for any other text."""
    _check_escaped(text)
    parsed = _parse_url(text)
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.hostname or re.search(r"[?#]", text):
        raise ValueError("not a URL; write https://[user:password@]host[:port][/path], without ? and #")
    return Secret(text)


def receiver_url(*schemes: str) -> Callable[[str], Secret]:
    """Return a converter to a receiver's URL with one of these schemes."""

    def receiver(text: str) -> Secret:
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


def _check_escaped(text: str) -> None:
    # Readers of such a URL disagree about where its host begins, and would show a part of the password.
    if re.search(r"://.*[@/?#].*@", text, re.DOTALL):
        raise ValueError("an @ in a password, or after / ? #; write @ / ? # of a password as %40 %2F %3F %23")


def _parse_url(text: str) -> SplitResult | None:
    """Return the parts of a URL; None for any other text."""
    try:
        parsed = urlsplit(text)
        # Reading the port validates it.
        return parsed if "://" in text and (parsed.port is None or parsed.port > 0) else None
    except ValueError:
        return None
