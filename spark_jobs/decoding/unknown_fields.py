"""The fields of a JSON message that its schema does not name, cut out of the text as it was sent.

The result is an object of the same nesting. Each name and each value that the schema does not name appears in it byte
for byte, in the order of the message, as often as it was sent:

    {"id": 7, "to": {"x": 1.0, "new": 1E400}, "more": [ ]}    leaves    {"to":{"new":1E400},"more":[ ]}

for the schema `id INT, to STRUCT<x: DOUBLE>`. All keys of a MAP count as known, and elements of an ARRAY keep their
places: `null` stands for one without unknown fields. Only messages that the decoder accepts are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from include.pipelines.spec import Json
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.worker_code import WorkerCode, check_unchanged, worker_code

MOST_PATHS = 100
"""Most paths that are returned for one message."""

_NAME_LENGTH = 100
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBER = re.compile(rf"[ \t\n\r]*({_STRING})[ \t\n\r]*:[ \t\n\r]*", re.DOTALL)
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\]]|[^"{{}}\[\]]++', re.DOTALL)
_SCALAR = re.compile(rf'{_STRING}|[^"{{}}\[\],: \t\n\r]++', re.DOTALL)
_DEEPER = {"{": 1, "[": 1, "}": -1, "]": -1}
_WHITE = " \t\n\r"
_PLAIN = re.compile(rf"[A-Za-z0-9_$-]{{1,{_NAME_LENGTH}}}")


@dataclass(frozen=True)
class Shape:
    """What a type names inside a value; one of the three is set. Any other value is known entirely."""

    fields: Mapping[str, Shape | None] | None = None
    """The fields of an object that is read as a struct."""
    values: Shape | None = None
    """The shape of each value of an object that is read as a map."""
    elements: Shape | None = None
    """The shape of each element of an array."""

    def named(self, name: str) -> tuple[bool, Shape | None]:
        """Return whether an object's name, in its quotes, is known, and the shape of what it names."""
        if self.fields is None:
            return True, self.values
        decoded = _decoded(name)
        return decoded in self.fields, self.fields.get(decoded)


def shape_of(kind: DataType) -> Shape | None:
    """Return the shape of a type, or None when nothing inside its values can be unknown."""
    if isinstance(kind, StructType):
        return Shape(fields={field.name: shape_of(field.dataType) for field in kind.fields})
    if isinstance(kind, MapType):
        inner = shape_of(kind.valueType)
        return Shape(values=inner) if inner else None
    if isinstance(kind, ArrayType):
        inner = shape_of(kind.elementType)
        return Shape(elements=inner) if inner else None
    return None


def unknown_fields(decoder: Json, value: Column) -> Column:
    """Return the unknown fields of values that are messages, as JSON text; null where there are none."""
    shape = shape_of(struct_of(decoder.schema))
    assert shape
    code = code_of_workers()

    def cut(values: pa.Array) -> pa.Array:
        try:
            left = [None if each is None else left_of(each, shape) for each in values.to_pylist()]
        finally:
            check_unchanged(code)
        return pa.array(left, pa.string())

    cut.__annotations__ = {"values": pa.Array, "return": pa.Array}
    function: Callable[[Column], Column] = arrow_udf(cut, StringType())  # type: ignore[call-overload]
    return function(value)


def code_of_workers() -> WorkerCode:
    """Return the code that Python workers run for `unknown_fields`, as it was when this process first asked."""
    return worker_code(f"{__name__}:left_of")


def paths(decoder: Json, unknown: Column) -> Column:
    """Return the paths in the result of `unknown_fields`, each once: an array of texts, safe to print."""
    shape = shape_of(struct_of(decoder.schema))
    assert shape

    def find(values: pa.Array) -> pa.Array:
        found = [None if each is None else paths_of(each, shape) for each in values.to_pylist()]
        return pa.array(found, pa.list_(pa.string()))

    find.__annotations__ = {"values": pa.Array, "return": pa.Array}
    function: Callable[[Column], Column] = arrow_udf(find, ArrayType(StringType()))  # type: ignore[call-overload]
    return function(unknown)


def left_of(value: bytes, shape: Shape) -> str | None:
    """Return what a message has beyond its shape, or None. A message that cannot be cut is returned whole."""
    text = value.decode()
    if _is_all_known(text, shape):
        return None
    try:
        return _left(text, _skip(text, 0), shape)
    except (ValueError, IndexError):
        # The parser accepted it, so it is kept rather than lost.
        return text.strip(_WHITE)


def paths_of(unknown: str, shape: Shape) -> list[str]:
    """Return the first paths of a message's unknown fields, each once, in their order.

    Names are joined by dots, `*` stands for any key of a map and `[]` for any element of an array. A name beyond
    letters, digits, `_`, `$` and `-` stands in quotes as it was sent; long ones are shortened.
    """
    found: dict[str, None] = {}
    with suppress(ValueError, IndexError):
        for path in _paths(unknown, 0, shape, ""):
            found[path] = None
            if len(found) == MOST_PATHS:
                break
    return list(found)


def _is_all_known(text: str, shape: Shape) -> bool:
    """Return whether a message has no unknown field, by a parser many times faster than cutting; False if unsure."""
    try:
        return _is_known(json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str), shape)
    except (ValueError, RecursionError):
        return False


def _is_known(value: Any, shape: Shape) -> bool:
    """Return whether a parsed value (objects as tuples of pairs) has nothing beyond its shape."""
    if isinstance(value, tuple) and shape.fields is not None:
        fields = shape.fields
        return all(
            name in fields and ((inner := fields[name]) is None or _is_known(each, inner)) for name, each in value
        )
    if isinstance(value, tuple) and (values := shape.values):
        return all(_is_known(each, values) for _, each in value)
    if isinstance(value, list) and (elements := shape.elements):
        return all(_is_known(each, elements) for each in value)
    return True


def _left(text: str, at: int, shape: Shape) -> str | None:
    """Return the unknown part of the value that begins at `at`, or None."""
    if text[at] == "{" and shape.elements is None:
        kept = []
        for name, start, end in _members(text, at):
            is_known, inner = shape.named(name)
            left = text[start:end] if not is_known else _left(text, start, inner) if inner else None
            if left is not None:
                kept.append(f"{name}:{left}")
        return "{" + ",".join(kept) + "}" if kept else None
    if text[at] == "[" and shape.elements:
        found = [_left(text, start, shape.elements) for start in _elements(text, at)]
        is_any = any(each is not None for each in found)
        return "[" + ",".join(each or "null" for each in found) + "]" if is_any else None
    return None


def _paths(text: str, at: int, shape: Shape, above: str) -> Iterator[str]:
    if text[at] == "{" and shape.elements is None:
        for name, start, _ in _members(text, at):
            is_known, inner = shape.named(name)
            path = f"{above}.{_shown(name, shape)}".removeprefix(".")
            if not is_known:
                yield path
            elif inner:
                yield from _paths(text, start, inner, path)
    elif text[at] == "[" and shape.elements:
        for start in _elements(text, at):
            yield from _paths(text, start, shape.elements, f"{above}[]")


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield the members of the object that begins at `at`: the name in quotes, start and end of the value."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        name = _MEMBER.match(text, at)
        if not name:
            raise ValueError(f"no member at {at}")
        end = _end(text, name.end())
        yield name[1], name.end(), end
        at = _next(text, end)


def _elements(text: str, at: int) -> Iterator[int]:
    """Yield the start of each element of the array that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        yield at
        at = _next(text, _end(text, at))


def _next(text: str, at: int) -> int:
    """Return the start of the next member or element, or the position of the closing brace or bracket."""
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _end(text: str, at: int) -> int:
    """Return the end of the value that begins at `at`."""
    if text[at] not in "{[":
        scalar = _SCALAR.match(text, at)
        if not scalar:
            raise ValueError(f"no value at {at}")
        return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += _DEEPER.get(token[0], 0)
        if not depth:
            return token.end()
    raise ValueError(f"no end of what begins at {at}")


def _skip(text: str, at: int) -> int:
    """Return the position of the next character that is not white space."""
    while text[at] in _WHITE:
        at += 1
    return at


def _decoded(name: str) -> str:
    return str(json.loads(name, strict=False)) if "\\" in name else name[1:-1]


def _shown(name: str, shape: Shape) -> str:
    if shape.fields is None:
        return "*"
    if _PLAIN.fullmatch(_decoded(name)):
        return _decoded(name)
    return name if len(name) <= _NAME_LENGTH else f'{name[:_NAME_LENGTH]}…"'
