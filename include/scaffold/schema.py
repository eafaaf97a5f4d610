"""The schema of a sample of JSON messages, as the DDL that a pipeline declares."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from include.errors import UsageError
from include.pipelines.spec.ddl import Field as DeclaredField
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.names import free_name

_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_VIEW = frozenset({"window", "window_start", "window_end", "count"})
"""Columns that the generated view and its table have beside the one that it counts by."""

_DIGITS = 38
"""Of Spark's longest decimal."""

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Field:
    """A top-level field of the messages."""

    name: str
    ddl: str
    """Its type."""

    @property
    def column(self) -> str:
        """Its column in the archive table: its name, made plain and apart from Tidemark's own columns."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", self.name)
        plain = f"_{plain}" if plain[0].isdigit() else plain
        return free_name(plain)


@dataclass(frozen=True)
class Sample:
    """The messages of a sample, and what they have in common."""

    messages: list[dict[str, Any]]
    fields: tuple[Field, ...]

    def times(self) -> list[str]:
        """Return the paths of the fields that are times in every message, those at the top first."""
        paths = [path for path, kind in _leaves(self.fields) if kind == "TIMESTAMP"]
        always = [path for path in paths if all(isinstance(value_at(m, path), str) for m in self.messages)]
        return sorted(always, key=lambda path: path.count("."))

    def keys(self) -> list[str]:
        """Return the columns to count by: text that every message has and that is not empty, the most repetitive first.

        None of them has the name of another column of the generated view.
        """
        free = [field for field in self.fields if field.ddl == "STRING" and field.column.lower() not in _OF_THE_VIEW]
        texts = [
            field for field in free if all(isinstance(m.get(field.name), str) and m[field.name] for m in self.messages)
        ]
        return [f.column for f in sorted(texts, key=lambda f: len({m[f.name] for m in self.messages}))]


def read_sample(path: Path) -> Sample:
    """Return the sample in a file: one JSON object per line, one object, or an array of objects.

    Raises UsageError when it is none of these, when it is empty, or when its fields cannot be columns.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES:,} bytes", remedy="some hundred messages are enough")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the sample {path}: {error.strerror}", remedy="name a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"the sample {path} is not UTF-8") from None
    messages = list(_messages(path, text))
    if not messages:
        raise UsageError(f"the sample {path} holds no message", remedy="a JSON object a line")
    if not any(messages):
        raise UsageError(
            f"the messages of {path} have no fields", remedy="an event needs a time such as 2026-11-20T05:00:00Z"
        )
    return Sample(messages, _fields(path, messages))


def _messages(path: Path, text: str) -> Iterator[dict[str, Any]]:
    try:
        whole = json.loads(text)
        messages = whole if isinstance(whole, list) else [whole]
        places = [f"element {n}" for n in range(1, len(messages) + 1)]
    except json.JSONDecodeError:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        messages, places = [], [f"line {n}" for n, _ in lines]
        for number, line in lines:
            try:
                messages.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise UsageError(f"{path}, line {number}: {error.msg}", remedy="a JSON object a line") from None
    for message, place in zip(messages, places, strict=True):
        if not isinstance(message, dict):
            raise UsageError(f"{path}, {place}: not a JSON object", remedy="a JSON object a line")
        yield message


def _fields(path: Path, messages: list[dict[str, Any]]) -> tuple[Field, ...]:
    lines = "\n".join(json.dumps(message) for message in messages).encode()
    try:
        # In one block: types are inferred block by block, and must hold for all.
        options = pa.json.ReadOptions(block_size=len(lines) + 1)
        schema = pa.json.read_json(io.BytesIO(lines), read_options=options).schema
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the messages of {path} do not share one schema: {str(error).splitlines()[0]}",
            remedy="a field must have one type in all of them",
        ) from None
    _check_names(path, schema)
    fields = tuple(
        Field(field.name, _ddl(field.type, [message.get(field.name) for message in messages])) for field in schema
    )
    _check_apart(path, [field.column for field in fields])
    return fields


def _check_apart(path: Path, names: list[str]) -> None:
    folded = [name.lower() for name in names]
    if twice := [name for name in names if folded.count(name.lower()) > 1]:
        raise UsageError(
            f"{path}: {', '.join(twice)} would be one column: neither case nor punctuation distinguishes names",
            remedy="take one of the fields out of the sample",
        )


def _check_names(path: Path, schema: Iterable[pa.Field]) -> None:
    _check_apart(path, [field.name for field in schema])
    for field in schema:
        if not field.name or "`" in field.name:
            raise UsageError(f"{path}: a field named {field.name!r} cannot be a column")
        if pa.types.is_struct(field.type):
            _check_names(path, field.type)


def _ddl(kind: pa.DataType, values: list[Any]) -> str:
    """Return Arrow's type as Spark's DDL. `values`: all values of the field in the sample."""
    held = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            # No file can hold a struct without fields; as text, whatever the object may hold later is kept.
            return "STRING"
        parts = (f"{quoted(f.name)}: {_ddl(f.type, [value.get(f.name) for value in held])}" for f in kind)
        return f"STRUCT<{', '.join(parts)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type, [each for value in held for each in value])}>"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return "BIGINT"
    if pa.types.is_floating(kind):
        return _long_integer(held) if held and all(isinstance(value, int) for value in held) else "DOUBLE"
    return "TIMESTAMP" if held and all(_is_time(value) for value in held) else "STRING"


def _long_integer(values: list[int]) -> str:
    """Return the type of whole numbers that do not fit a BIGINT, such as ids: a DOUBLE would round them."""
    most = max(len(str(abs(value))) for value in values)
    return f"DECIMAL({_DIGITS}, 0)" if most <= _DIGITS else "STRING"


def _is_time(value: object) -> bool:
    if not isinstance(value, str) or not _TIME.match(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _leaves(fields: Iterable[Field]) -> Iterator[tuple[str, str]]:
    """Yield paths and types of the fields outside arrays whose names need no quotes."""
    for field in fields_of(", ".join(f"{quoted(field.name)} {field.ddl}" for field in fields)):
        yield from _leaves_of(field.name, field)


def _leaves_of(path: str, field: DeclaredField) -> Iterator[tuple[str, str]]:
    if not _SIMPLE.fullmatch(field.name):
        return
    if field.kind != "STRUCT":
        yield path, field.kind
        return
    for part in field.inner:
        yield from _leaves_of(f"{path}.{part.name}", part)


def value_at(message: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a message; None if there is none."""
    value: Any = message
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def quoted(name: str) -> str:
    """Return a column's name as DDL takes it."""
    return name if _SIMPLE.fullmatch(name) else f"`{name}`"


def inside_literal(text: str) -> str:
    """Return a text as it is written inside a Python literal between double quotes, one or three.

    The names of a sample come from elsewhere: none may end the literal, and each is to be exactly itself in it.
    """
    return "".join(map(_character, text))


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()
