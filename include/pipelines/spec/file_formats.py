"""Formats of an archive table's files: which exist, which values each stores exactly, and which one a file has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

from include.errors import TidemarkError, UsageError
from include.pipelines.spec.ddl import Field, fields_of

FileFormat = Literal["parquet", "orc", "avro", "csv", "json"]

FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

TEXT_FORMATS: frozenset[FileFormat] = frozenset({"csv", "json"})
"""Formats whose files do not state the types of their columns."""

CSV_NULL = r"\N"
"""How a CSV file writes null; a text of the same characters would be read as null."""

_PLAIN = frozenset(
    {"STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "FLOAT", "REAL", "DOUBLE", "DECIMAL"}
    | {"DEC", "NUMERIC", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT"}
)
_NESTED = _PLAIN | {"BINARY", "STRUCT", "ARRAY", "MAP"}

_HOLDS: dict[FileFormat, frozenset[str]] = {
    # The entries of a map come back from ORC sorted, from Avro in the order of their hashes.
    "orc": _NESTED - {"MAP"},
    "avro": _NESTED - {"MAP", "BYTE", "TINYINT", "SHORT", "SMALLINT"},
    "json": _NESTED,
    "csv": _PLAIN,
}
"""Types whose values are read back from a file unchanged; Parquet is not checked, it holds all of Spark's types."""

CHANGING: frozenset[FileFormat] = frozenset({"orc", "csv", "json"})
"""Formats that change some values of the types above; records with such a value go to quarantine."""

_NOT_IN_DELTA = frozenset(" ,;{}()\n\t=")

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def format_of(name: str) -> FileFormat:
    """Return the format of a file by the end of its name."""
    ending = name.removesuffix(".gz").rsplit(".", 1)[-1]
    for file_format in FILE_FORMATS:
        if ending == file_format:
            return file_format
    raise TidemarkError(f"{name} is a file of no known format", remedy="./tidemark doctor")


def check_columns(file_format: FileFormat, columns: str) -> None:
    """Raise UsageError, naming the column, when files of the format do not hold a column's values exactly."""
    if file_format not in FILE_FORMATS:
        raise UsageError(f"unknown file format {file_format!r}", remedy=f"one of: {', '.join(FILE_FORMATS)}")
    if file_format == "parquet":
        return
    for path, field in _all(fields_of(columns)):
        if field.kind not in _HOLDS[file_format]:
            raise _refused(file_format, path, f"{field.kind} does not come back as it was", _remedy(file_format, field))
        if field.kind == "MAP" and field.inner[0].kind != "STRING":
            raise _refused(file_format, path, "keys of maps are text", "declare the key as STRING")
        if file_format == "avro" and field.name and not _AVRO_NAME.fullmatch(field.name):
            raise _refused(file_format, path, "a name is letters, digits and _", "rename it in the rows function")


def check_iceberg(file_format: FileFormat, columns: str) -> None:
    """Raise UsageError, naming the column, when an Iceberg table cannot hold files of the format or a column's type."""
    if file_format != "parquet":
        raise UsageError(f"iceberg=True needs files of the format parquet, not {file_format}", remedy="declare one")
    for path, field in _all(fields_of(columns)):
        if field.kind.split(" COLLATE ")[0] not in _NESTED or (field.kind == "STRUCT" and not field.inner):
            raise UsageError(
                f"column {path!r} does not fit an Iceberg table: {field.kind} is no type of it",
                remedy="make it another type in the rows function, e.g. text, or declare no iceberg",
            )


def check_delta(columns: str) -> None:
    """Raise UsageError, naming the column, when a Delta table cannot have a column by its name."""
    for path, field in _all(fields_of(columns)):
        if set(field.name) & _NOT_IN_DELTA:
            raise UsageError(
                f"column {path!r} does not fit a Delta table: a name has no space, tab, line break or one of ,;{{}}()=",
                remedy="rename it in the rows function, or declare no delta",
            )


def times_without_zone(columns: str) -> list[str]:
    """Return the paths of the fields of the type TIMESTAMP_NTZ."""
    kinds = ("TIMESTAMP_NTZ", "TIMESTAMP WITHOUT TIME ZONE")
    return [path for path, field in _all(fields_of(columns)) if field.kind in kinds]


def _all(fields: tuple[Field, ...], above: str = "") -> Iterator[tuple[str, Field]]:
    for field in fields:
        path = ".".join(part for part in (above, field.name) if part)
        yield path, field
        yield from _all(field.inner, path)


def _remedy(file_format: FileFormat, field: Field) -> str:
    instead, registered = "", ""
    if file_format == "csv":
        instead = "make it text in the rows function, e.g. with to_json or base64, or"
    elif field.kind == "MAP":
        instead = "make it an array of structs in the rows function, with map_entries, or"
        # Such files may be registered: this was not refused before.
        registered = "; where files are registered already, in a pipeline of another name"
    return f"{instead} choose another file_format, e.g. parquet{registered}".strip()


def _refused(file_format: FileFormat, path: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"column {path!r} does not fit files of the format {file_format}: {why}", remedy=remedy)
