"""Whether the time and the depth of a record are bounded by its bytes, whatever these are; else its schema is refused.

Avro reads a field that is not declared, too, in order to pass over it, value by value: an array of nulls has as many
items as its few bytes say, and records without bytes, each of which holds the next kind several times, are more than
any decoder gets through. A value of a union comes with the bytes of its branch, one of a map with those of its key,
and an array whose items take none is refused: what is inside of them is counted for itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from include.schemas.logical_types import qualified

MOST_LEVELS = 128
"""Of types inside of types, also by their names: Avro's decoder calls itself for each."""

MOST_WITHOUT_BYTES = 1_000
"""Values that take no bytes, in one value."""

_PRIMITIVE = ("boolean", "int", "long", "float", "double", "bytes", "string")


class Unbounded(ValueError):
    """A record may take any time, or be nested in any depth; the message says by what."""


@dataclass(frozen=True)
class _Extent:
    """What reading a value of a type takes."""

    takes_bytes: bool = True
    without_bytes: int = 0
    """Values inside that take no bytes, but for those in a union, an array or a map."""
    levels: int = 1


_NOTHING = _Extent(takes_bytes=False, without_bytes=1)


def check_bounded(schema: str) -> None:
    """Raise Unbounded unless records of the schema are bounded by their bytes.

    The schema is as Avro renders it: a named type is defined where its name comes first, and nowhere else.
    """
    try:
        _Extents().of(json.loads(schema), "", "")
    except RecursionError:
        raise _too_deep() from None


class _Extents:
    def __init__(self) -> None:
        self._named: dict[str, _Extent | None] = {}
        """By full name; None while the type's own fields are read."""

    def of(self, node: Any, space: str, path: str) -> _Extent:
        """Return the extent of a type at a path of fields, in whose namespace names are."""
        if isinstance(node, list):
            return _with_own_bytes(*(self.of(each, space, path) for each in node))
        if isinstance(node, str):
            return self._known(node, space)
        match node["type"]:
            case "record" | "error":
                return self._record(node, space, path)
            case "enum" | "fixed":
                extent = _NOTHING if node["type"] == "fixed" and node["size"] == 0 else _Extent()
                self._named[_full_name(node, space)] = extent
                return extent
            case "array":
                items = self.of(node["items"], space, f"{path}[]")
                if not items.takes_bytes:
                    raise Unbounded(f"items of the array {path} take no bytes")
                return _with_own_bytes(items)
            case "map":
                return _with_own_bytes(self.of(node["values"], space, f"{path}.*"))
            case inner:
                return self.of(inner, space, path)

    def _known(self, name: str, space: str) -> _Extent:
        if name == "null":
            return _NOTHING
        if name in _PRIMITIVE:
            return _Extent()
        full = qualified(name, space)
        # In a namespace, a name may also be of none.
        full = full if full in self._named else name
        extent = self._named[full]
        if extent is None:
            # Of a value nested deeply enough, Avro's decoder would overflow the stack, which ends the driver.
            raise Unbounded(f"{full} is part of itself")
        return extent

    def _record(self, node: Any, space: str, path: str) -> _Extent:
        name = _full_name(node, space)
        self._named[name] = None
        inner = name.rpartition(".")[0]
        fields = [self.of(each["type"], inner, f"{path}.{each['name']}".removeprefix(".")) for each in node["fields"]]
        takes_bytes = any(each.takes_bytes for each in fields)
        without_bytes = sum(each.without_bytes for each in fields) + (not takes_bytes)
        if without_bytes > MOST_WITHOUT_BYTES:
            raise Unbounded(f"{name} has more than {MOST_WITHOUT_BYTES} values that take no bytes")
        extent = self._named[name] = _Extent(takes_bytes, without_bytes, _levels(*fields))
        return extent


def _with_own_bytes(*parts: _Extent) -> _Extent:
    return _Extent(levels=_levels(*parts))


def _levels(*parts: _Extent) -> int:
    levels = 1 + max((each.levels for each in parts), default=0)
    if levels > MOST_LEVELS:
        raise _too_deep()
    return levels


def _too_deep() -> Unbounded:
    return Unbounded(f"it is nested deeper than {MOST_LEVELS} types")


def _full_name(node: Any, space: str) -> str:
    return qualified(node["name"], node.get("namespace", space))
