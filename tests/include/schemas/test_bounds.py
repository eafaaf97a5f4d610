"""Writer schemas whose records may take any time or depth, whatever their bytes, and those alike whose do not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from include.schemas.bounds import MOST_LEVELS, MOST_WITHOUT_BYTES, Unbounded, check_bounded


def record(name: str, *kinds: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": name, **more, "fields": fields}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "Fixed", "size": size}


def doubled(levels: int, leaf: Any, wrap: Any = lambda name: name) -> dict[str, Any]:
    """Records each of which holds the one before twice: so many levels, twice as many leaves with each."""
    first, *others = [record("N0", leaf)] + [
        record(f"N{level}", *[wrap(f"N{level - 1}")] * 2) for level in range(1, levels)
    ]
    return record("R", ["null", first], *(["null", each] for each in others))


UNBOUNDED: dict[str, tuple[Any, str]] = {
    "nulls": (array("null"), "items of the array f0 take no bytes"),
    "nulls inside": (["null", mapped(array(array("null")))], "items of the array f0.*[] take no bytes"),
    "records without fields": (array(record("E")), "items of the array f0 take no bytes"),
    "records of such": (array(record("E", record("F"), "null")), "items of the array f0 take no bytes"),
    "fixed of no bytes": (array(fixed(0)), "items of the array f0 take no bytes"),
    "named elsewhere": (record("E", ["null", record("F", "null")], array("F")), "items of the array f0.f1 take no"),
    "nulls in logical": ({"type": array("null")}, "items of the array f0 take no bytes"),
    "more and more": (doubled(40, "null"), f"N9 has more than {MOST_WITHOUT_BYTES} values that take no bytes"),
    "more beside bytes": (
        record("E", "long", *["null"] * (MOST_WITHOUT_BYTES + 1)),
        f"E has more than {MOST_WITHOUT_BYTES} values that take no bytes",
    ),
    "itself": (record("Node", ["null", "Node"], namespace="a"), "a.Node is part of itself"),
    "itself, of no namespace": (record("Node", record("In", array("Node"), namespace="a")), "Node is part of itself"),
    "deep by names": (doubled(MOST_LEVELS, "long"), f"it is nested deeper than {MOST_LEVELS} types"),
    "deep by names in unions": (
        doubled(MOST_LEVELS // 2, "long", lambda name: ["null", name]),
        f"it is nested deeper than {MOST_LEVELS} types",
    ),
    "deep in text": (json.loads('{"type":"array","items":' * 400 + '"long"' + "}" * 400), "it is nested deeper than"),
}


@pytest.mark.parametrize("case", UNBOUNDED)
def test_schema_is_refused_when_its_records_are_not_bounded_by_their_bytes(case: str) -> None:
    kind, said = UNBOUNDED[case]
    with pytest.raises(Unbounded, match=f"^{re.escape(said)}"):
        check_bounded(json.dumps(record("Root", kind)))


BOUNDED: dict[str, Any] = {
    "null": "null",
    "union of null": array(["null"]),
    "optional items": array(["null", "long"]),
    "map of null": mapped("null"),
    "map of empty records": mapped(record("E")),
    "empty record": record("E"),
    "fixed": array(fixed(1)),
    "enum": array({"type": "enum", "name": "E", "symbols": ["A"], "size": 0}),
    "arrays": array(array("long")),
    "maps": array(mapped("null")),
    "records with bytes": array(record("E", "null", record("F"), "boolean")),
    "many nulls": record("E", *["null"] * (MOST_WITHOUT_BYTES - 2)),
    "leaves with bytes": doubled(40, "long"),
    "empty leaves in unions": doubled(40, "null", lambda name: ["null", name]),
    "logical": array({"type": "long", "logicalType": "timestamp-millis"}),
    "twice": record("E", record("F", "long", namespace="a"), array("a.F"), ["null", "a.F"]),
    "of no namespace": record("E", record("F", "long", namespace=""), record("G", "F", namespace="a"), namespace="b"),
}


@pytest.mark.parametrize("case", BOUNDED)
def test_schema_is_taken_when_its_records_are_bounded_by_their_bytes(case: str) -> None:
    check_bounded(json.dumps(record("Root", BOUNDED[case])))
