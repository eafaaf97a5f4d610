"""Reference files: their lines, and a hash of their content."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

from include.errors import UsageError
from include.pipelines.spec.archive import Reference
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.pipeline import Pipeline


def reference_lines(name: str, reference: Reference) -> list[str]:
    """Return the lines below the header. Raises UsageError when the header is not the declared columns."""
    try:
        lines = reference.path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(name, error) from error
    declared = [field.name for field in fields_of(reference.columns)]
    header = [column.strip() for column in next(csv.reader(lines[:1]), [])]
    if header != declared:
        first_line = repr(",".join(header)) if header else "empty"
        raise UsageError(
            f"the first line of the reference {name} ({reference.path.name}) is {first_line}, "
            f"declared are the columns {','.join(declared)!r}",
            remedy="write the declared columns as its first line, or declare the columns that it has",
        )
    return [line for line in lines[1:] if line]


def check_references(pipeline: Pipeline) -> None:
    """Raise UsageError when a reference's file cannot be read, or its header is not the declared columns.

    A reference with a source has no file until its content is read.
    """
    for name, reference in pipeline.references.items():
        if reference.source is None or reference.path != Path():
            reference_lines(name, reference)


def content_hash(name: str, reference: Reference) -> str:
    """Return twelve hex digits of the file's bytes. Raises UsageError when it cannot be read."""
    return hashlib.sha256(content_of(name, reference)).hexdigest()[:12]


def content_of(name: str, reference: Reference) -> bytes:
    """Return the file's bytes. Raises UsageError when it cannot be read."""
    try:
        return reference.path.read_bytes()
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"the reference {name} cannot be read: {error}", remedy="put the file, as UTF-8, where it is declared"
    )
