"""Logical types of a writer schema and of the declared one: alike, converted, or refused.

Avro resolves the types beneath logical types and reads their values by the declared schema, whatever they were
written as: milliseconds as microseconds, cents as whole units. Here a declared timestamp takes the writer's unit, of
which Spark makes the same type. Other differences are refused, and a text as a decimal, or the other way round: the
bytes of digits are not their number. Where else only one of the two schemas names a logical type, Avro's rule stays:
the value is what the declared schema says.

Source: https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_BENEATH = {
    "date": {"int"},
    "decimal": {"bytes", "fixed"},
    "duration": {"fixed"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "local-timestamp-nanos": {"long"},
    "uuid": {"string", "fixed"},
}
"""Avro's logical types, and the types they may annotate; any other annotation is ignored."""

_UNITS = ({"timestamp-millis", "timestamp-micros"}, {"local-timestamp-millis", "local-timestamp-micros"})
"""Of which Spark makes the same type."""

_NAMED = ("record", "error", "enum", "fixed")

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Incompatible(ValueError):
    """A value's logical type cannot be read as the declared one."""


def in_units_of(writer: str, reader: str) -> str:
    """Return the reader schema with the writer's units of timestamps. Raises Incompatible, which names the field.

    In both, a named type is defined where its name comes first, as in a schema that Avro renders.
    """
    written, declared = _Names(json.loads(writer)), _Names(json.loads(reader))
    units: dict[int, str] = {}
    for path, wrote, reads in _Pairs(written, declared).of(written.root, declared.root, "", set()):
        logical, wanted = _logical(wrote), _logical(reads)
        if "decimal" in (logical, wanted) and "string" in (_kind(wrote), _kind(reads)):
            raise Incompatible(f"{path} is {_name(wrote)}, declared as {_name(reads)}")
        if logical is None or wanted is None:
            continue
        if logical != wanted and {logical, wanted} not in _UNITS:
            raise Incompatible(f"{path} is {logical}, declared as {wanted}")
        if logical == "decimal" and not _fits(wrote, reads):
            raise Incompatible(f"{path} is {_digits(wrote)}, declared as {_digits(reads)}")
        if units.setdefault(id(reads), logical) != logical:
            raise Incompatible(f"{path} is {logical}, elsewhere {units[id(reads)]}, both declared as {wanted}")
        reads_as = units[id(reads)]
        if reads_as != wanted:
            declared.converted[id(reads)] = reads_as
    return json.dumps(declared.with_units()) if declared.converted else reader


def _logical(node: Any) -> str | None:
    """Return a type's logical type, if it is valid there."""
    name = node.get("logicalType") if isinstance(node, dict) else None
    is_valid = isinstance(name, str) and _kind(node) in _BENEATH.get(name, ())
    return name if is_valid and (name != "decimal" or _is_decimal(node)) else None


def _is_decimal(node: Any) -> bool:
    """Return whether a decimal's digits are valid; Avro ignores the annotation of others."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    # A boolean is an integer of Python's, and none of JSON's.
    return type(precision) is int and type(scale) is int and precision > 0 and 0 <= scale <= precision


def _fits(wrote: Any, reads: Any) -> bool:
    return bool(wrote.get("scale", 0) == reads.get("scale", 0) and wrote["precision"] <= reads["precision"])


def _digits(node: Any) -> str:
    return f"decimal({node['precision']}, {node.get('scale', 0)})"


def _name(node: Any) -> str:
    return _digits(node) if _logical(node) == "decimal" else _kind(node)


def _kind(node: Any) -> str:
    return str(node["type"]) if isinstance(node, dict) else "union" if isinstance(node, list) else str(node)


class _Names:
    """A schema whose named types are known by their full names."""

    def __init__(self, schema: Any) -> None:
        self._types: dict[str, Any] = {}
        self.converted: dict[int, str] = {}
        """Units of timestamps that the schema is to have, by identity of the type."""
        self.root = self._full(schema, "")

    def definition(self, node: Any) -> Any:
        """Return the type itself where the schema only names it."""
        return self._types.get(node, node) if isinstance(node, str) else node

    def _full(self, node: Any, space: str) -> Any:
        """Return a type in which each named type and each reference has its full name."""
        if isinstance(node, list):
            return [self._full(each, space) for each in node]
        if isinstance(node, str):
            full_name = qualified(node, space)
            return full_name if full_name in self._types else node
        if not isinstance(node["type"], str):
            return self._full(node["type"], space)
        kind = node["type"]
        if kind in _NAMED:
            name = qualified(node["name"], node.get("namespace", space))
            full = {key: value for key, value in node.items() if key != "namespace"} | {"name": name}
            # Known before its fields: these may be of the same type.
            self._types[name] = full
            inner = name.rpartition(".")[0]
            if "fields" in node:
                full["fields"] = [{**each, "type": self._full(each["type"], inner)} for each in node["fields"]]
            return full
        parts = {part: self._full(node[part], space) for part in ("items", "values") if part in node}
        if kind not in ("array", "map"):
            # A reference may be written as an object with nothing but its name.
            named = self._full(kind, space)
            return named if named in self._types else dict(node)
        return {**node, **parts}

    def with_units(self) -> Any:
        """Return the schema with the units of `converted`."""
        return self._with_units(self.root)

    def _with_units(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._with_units(each) for each in node]
        if not isinstance(node, dict):
            return node
        if unit := self.converted.get(id(node)):
            return {**node, "logicalType": unit}
        changed = {part: self._with_units(node[part]) for part in ("items", "values") if part in node}
        if "fields" in node:
            changed["fields"] = [{**each, "type": self._with_units(each["type"])} for each in node["fields"]]
        return {**node, **changed}


def qualified(name: str, space: str) -> str:
    """Return the full name of a type that is named inside a namespace."""
    return name if "." in name or not space else f"{space}.{name}"


class _Pairs:
    """The types that Avro resolves to each other, of two schemas that it can resolve."""

    def __init__(self, written: _Names, declared: _Names) -> None:
        self._written, self._declared = written, declared

    def of(self, wrote: Any, reads: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, Any, Any]]:
        """Yield path, written and declared type of each value inside; `seen` ends what is recursive."""
        wrote, reads = self._written.definition(wrote), self._declared.definition(reads)
        if isinstance(wrote, list):
            for branch in wrote:
                yield from self.of(branch, reads, path, seen)
            return
        if isinstance(reads, list):
            reads = self._branch(wrote, reads)
        match _kind(wrote), _kind(reads):
            case "record" | "error", "record" | "error":
                if (id(wrote), id(reads)) not in seen:
                    seen.add((id(wrote), id(reads)))
                    yield from self._fields(wrote, reads, path, seen)
            case "array", "array":
                yield from self.of(wrote["items"], reads["items"], f"{path}[]", seen)
            case "map", "map":
                yield from self.of(wrote["values"], reads["values"], f"{path}.*".removeprefix("."), seen)
            case _:
                yield path, wrote, reads

    def _fields(self, wrote: Any, reads: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, Any, Any]]:
        fields = {each["name"]: each["type"] for each in wrote["fields"]}
        for field in reads["fields"]:
            name = next((name for name in (field["name"], *field.get("aliases", ())) if name in fields), None)
            if name is not None:
                yield from self.of(fields[name], field["type"], f"{path}.{name}".removeprefix("."), seen)

    def _branch(self, wrote: Any, reads: list[Any]) -> Any:
        """Return the declared branch as which Avro reads a written type; null where there is none."""
        kind = _kind(wrote)
        branches = [self._declared.definition(each) for each in reads]
        alike = [each for each in branches if _kind(each) == kind]
        if kind in _NAMED:
            alike.sort(key=lambda each: _short(each) != _short(wrote))
        promoted = (each for wanted in _PROMOTED.get(kind, ()) for each in branches if _kind(each) == wanted)
        return next(iter(alike), None) or next(promoted, "null")


def _short(node: Any) -> str:
    return str(node["name"]).rpartition(".")[2]
