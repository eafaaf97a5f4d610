"""References: how they are declared, the lines of their files, and a hash of their content."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from include.errors import UsageError
from include.pipelines.spec.ddl import check_types, fields_of
from include.pipelines.spec.decoders import check_line
from include.pipelines.spec.names import check_count, check_identifier, check_kind, check_tuple


@dataclass(frozen=True)
class CatalogTable:
    """A table or view of the catalog as a reference's source, e.g. `lake.zip_codes`."""

    name: str

    def __str__(self) -> str:
        return f"the table {self.name}"


@dataclass(frozen=True)
class LakePath:
    """A Parquet file or folder, or a CSV file with a header, as a reference's source; the path is below the lake."""

    path: str
    file_format: Literal["parquet", "csv"]

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if not path.parts or path.is_absolute() or ".." in path.parts or "://" in self.path:
            raise UsageError(f"{self.path!r} is not a path below the lake", remedy="write one such as places/zip.csv")

    def __str__(self) -> str:
        return f"{self.path} in the lake"


@dataclass(frozen=True)
class JdbcQuery:
    """A query of a database as a reference's source; `TIDEMARK_JDBC_PROPERTIES` has the connection of that name."""

    connection: str
    query: str

    def __post_init__(self) -> None:
        check_identifier(self.connection, "connection")

    def __str__(self) -> str:
        return f"the query of {self.connection}"


@dataclass(frozen=True)
class Reference:
    """A small static table that transforms join: shipped with the code as CSV with a header, or read from a source."""

    path: Path = Path()
    """The CSV file; for a reference with a source, the file with the content that was read for a driver."""
    columns: str = ""
    source: CatalogTable | LakePath | JdbcQuery | None = field(default=None, kw_only=True)
    """Where the content is read when a stream's generation or an interval begins; the content is kept."""
    max_rows: int = field(default=100_000, kw_only=True)
    """A source with more rows is refused: every driver holds them all."""
    key: tuple[str, ...] = field(default=(), kw_only=True)
    """Columns by which functions join it, of texts or whole numbers: content in which two rows have the same values of
    them is refused, for a join would count other rows twice. Rows without one of the values are joined with nothing."""

    def __post_init__(self) -> None:
        if not self.columns or (self.source is None and self.path == Path()):
            raise UsageError("a reference needs columns, and a path or a source", remedy="declare both")
        check_types(self.columns, "a reference")
        # The content of a source, too, is kept as lines of CSV.
        check_line(self.columns, "a reference", "let the function that joins it read it, e.g. with from_json or split")
        check_kind(self.path, "the path of a reference", Path, 'Path(__file__).with_name("places.csv")')
        check_kind(self.source, "the source of a reference", CatalogTable | LakePath | JdbcQuery | None)
        check_count(self.max_rows, "max_rows of a reference")
        check_tuple(self.key, "the key of a reference", str)
        fitting = [each.name for each in fields_of(self.columns) if each.kind in _KEYS]
        if wrong := [name for name in self.key if name not in fitting]:
            raise UsageError(
                f"the key of a reference names {', '.join(wrong)}",
                remedy=f"name columns of texts or whole numbers: {', '.join(fitting) or 'it has none'}",
            )


_KEYS = frozenset({"STRING", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT"})
"""Types of which equal values are equal texts."""

_LINE_END = re.compile("\r?\n")
"""The only ends of a line: Python's `splitlines` also splits at characters that a value may have, as U+0085."""

_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"[ \t]*|(?![ \t]*")[^,]*')
"""A value as Spark reads it as it was meant: a quote inside of quotes is written `\\"`."""

_ESCAPED = re.compile(r'\\(["\\])')


def numbered_lines(name: str, reference: Reference, pipeline: str = "") -> list[tuple[int, str]]:
    """Return the lines below the header, each with its number in the file.

    Raises UsageError when the header is not the declared columns, a line has not as many values, or two lines have the
    same key.
    """
    first, *lines = _lines_of(name, reference, pipeline)
    declared, header = declared_columns(reference), _columns_in(first)
    if header != declared:
        first_line = repr(",".join(header)) if header else "empty"
        raise UsageError(
            f"the first line of the reference {name} ({reference.path.name}) is {first_line}, "
            f"declared are the columns {','.join(declared)!r}",
            remedy="write the declared columns as its first line, or declare the columns that it has",
            pipeline=pipeline,
        )
    numbered = [(number, line) for number, line in enumerate(lines, 2) if line]
    for number, line in numbered:
        if (count := values_in(line)) != len(declared):
            what = (
                "a value in quotes that does not end in it, or a quote or line break that is not read back"
                if count is None
                else f"{count} columns, declared are the {len(declared)} columns {','.join(declared)!r}"
            )
            raise wrong_line(name, reference, number, what, pipeline)
    if found := repeated_key(reference, (line for _, line in numbered)):
        earlier, again, key = found
        what = f"the key {key}; so has line {numbered[earlier][0]}"
        raise wrong_line(name, reference, numbered[again][0], what, pipeline)
    return numbered


def repeated_key(reference: Reference, lines: Iterable[str]) -> tuple[int, int, str] | None:
    """Return the indices of the first two lines with the same key, and that key in words; None where there are none."""
    columns = declared_columns(reference)
    at = [columns.index(name) for name in reference.key]
    seen: dict[tuple[str, ...], int] = {}
    for index, line in enumerate(lines if at else ()):
        values = _values(line)
        key = tuple(values[each] for each in at)
        # An empty value is null.
        if all(key) and (first := seen.setdefault(key, index)) != index:
            return first, index, ", ".join(f"{name} {value!r}" for name, value in zip(reference.key, key, strict=True))
    return None


def _values(line: str) -> list[str]:
    """Return the texts of a line's values, for a line that has its declared number of them."""
    if '"' not in line:
        return line.split(",")
    found, at = [], 0
    while match := _VALUE.match(line, at):
        value = match[0]
        if value.startswith('"'):
            value = _ESCAPED.sub(r"\1", value.rstrip(" \t")[1:-1])
        found.append(value)
        if match.end() == len(line):
            break
        at = match.end() + 1
    return found


def declared_columns(reference: Reference) -> list[str]:
    """Return the names of the declared columns."""
    return [field.name for field in fields_of(reference.columns)]


def columns_of_file(name: str, reference: Reference) -> list[str]:
    """Return the columns that the file's first line names. Raises UsageError when it cannot be read."""
    return _columns_in(_lines_of(name, reference, "")[0])


def _columns_in(header: str) -> list[str]:
    return [column.strip() for column in next(csv.reader([header] if header else []), [])]


def _lines_of(name: str, reference: Reference, pipeline: str) -> list[str]:
    try:
        return _LINE_END.split(reference.path.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, error, pipeline) from error


def values_in(line: str) -> int | None:
    """Return how many values a line has; None when one of them cannot be read as it was meant."""
    if "\r" in line:
        return None
    if '"' not in line:
        return line.count(",") + 1
    count, at = 1, 0
    while (match := _VALUE.match(line, at)) and match.end() < len(line):
        if line[match.end()] != ",":
            return None
        count, at = count + 1, match.end() + 1
    return count if match else None


def wrong_line(name: str, reference: Reference, number: int, what: str, pipeline: str) -> UsageError:
    """Return the error for a line of a reference, which says what the line has."""
    return UsageError(
        f"line {number} of the reference {name} ({reference.source or reference.path.name}) has {what}",
        remedy='correct it: values with commas are in quotes, a quote in them is written \\", none has a line break; '
        "content that was kept is replaced with a stream's new generation and by an interval's --new-references",
        pipeline=pipeline,
    )


def check_references(references: Mapping[str, Reference], pipeline: str) -> None:
    """Raise UsageError when a reference's file cannot be read, or has other columns than the declared ones.

    A reference with a source has no file until its content is read.
    """
    for name, reference in references.items():
        if reference.source is None or reference.path != Path():
            numbered_lines(name, reference, pipeline)


def content_hash(name: str, reference: Reference) -> str:
    """Return twelve hex digits of the file's bytes. Raises UsageError when it cannot be read."""
    return hashlib.sha256(content_of(name, reference)).hexdigest()[:12]


def content_of(name: str, reference: Reference) -> bytes:
    """Return the file's bytes. Raises UsageError when it cannot be read."""
    try:
        return reference.path.read_bytes()
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception, pipeline: str = "") -> UsageError:
    return UsageError(
        f"the reference {name} cannot be read: {error}",
        remedy="put the file, as UTF-8, where it is declared",
        pipeline=pipeline,
    )
