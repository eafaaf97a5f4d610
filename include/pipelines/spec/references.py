"""Reference files: their lines, and a hash of their content."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

from include.errors import UsageError
from include.pipelines.spec.archive import Reference
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.pipeline import Pipeline

_LINE_END = re.compile("\r?\n")
"""The only ends of a line: Python's `splitlines` also splits at characters that a value may have, as U+0085."""

_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"[ \t]*|(?![ \t]*")[^,]*')
"""A value as Spark reads it as it was meant: a quote inside of quotes is written `\\"`."""


def numbered_lines(name: str, reference: Reference, pipeline: str = "") -> list[tuple[int, str]]:
    """Return the lines below the header, each with its number in the file.

    Raises UsageError when the header is not the declared columns, or a line has not as many values.
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
    return numbered


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


def check_references(pipeline: Pipeline) -> None:
    """Raise UsageError when a reference's file cannot be read, or has other columns than the declared ones.

    A reference with a source has no file until its content is read.
    """
    for name, reference in pipeline.references.items():
        if reference.source is None or reference.path != Path():
            numbered_lines(name, reference, pipeline.name)


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
