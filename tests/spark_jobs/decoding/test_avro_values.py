"""What each declared type of Avro makes of what was written as another: that value, or quarantine."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.pipelines.spec import Avro
from include.schemas.writer_schemas import Unusable
from spark_jobs.decoding import avro_wire

pytestmark = pytest.mark.spark


class Resolved:
    """Schemas that were resolved, by id, without a registry."""

    def __init__(self, schemas: list[Any]) -> None:
        self._schemas = {each: json.dumps(schema) for each, schema in enumerate(schemas, 1)}

    def resolved(self) -> dict[int, str]:
        return self._schemas

    def asks_no_more(self) -> bool:
        return False


def record(**kinds: Any) -> dict[str, Any]:
    return {"type": "record", "name": "T", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(kind if isinstance(kind, dict) else {"type": kind}), "logicalType": name, **more}


def number(value: int) -> bytes:
    """Avro's encoding of an int or a long."""
    left, written = (value << 1) ^ (value >> 63), bytearray()
    while left > 127:
        written.append(left & 127 | 128)
        left >>= 7
    return bytes([*written, left])


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw)) + raw


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": [*symbols], **more}


INT, LONG = (0, -1, 2**31 - 1, -(2**31)), (2**63 - 1, -(2**63), 2**53 + 1)
DECIMAL = {"precision": 5, "scale": 2}
BAD = object()
"""A record that is in quarantine."""

Case = tuple[Any, Any, list[tuple[bytes, Any]]]
CASES: dict[str, Case] = {
    "int": ("int", "int", [(number(n), str(n)) for n in INT] + [(b"\xff" * 10, BAD)]),
    "int_long": ("int", "long", [(number(n), str(n)) for n in INT]),
    "int_double": ("int", "double", [(number(n), str(float(n)) if abs(n) < 10**7 else None) for n in INT[:2]]),
    "long": ("long", "long", [(number(n), str(n)) for n in LONG] + [(b"\xff" * 11, BAD)]),
    "float_double": ("float", "double", [
        (struct.pack("<f", 0.5), "0.5"), (struct.pack("<f", -0.0), "-0.0"), (b"\x01\x00\xc0\xff", "NaN"),
        (b"\x01\x00\x80\x7f", "NaN"), (struct.pack("<f", float("inf")), "Infinity")]),
    "double": ("double", "double", [
        (struct.pack("<d", 5e-324), "4.9E-324"), (b"\x01" + b"\0" * 5 + b"\xf0\x7f", "NaN")]),
    "boolean": ("boolean", "boolean", [(b"\x01", "true"), (b"\0", "false")]),
    "text": ("string", "string", [(text(t), t) for t in ("", "a\0b", "\U0001f600", "\ufeff", "null")]
             + [(text(raw), BAD) for raw in (b"\xed\xa0\x80", b"\xc0\x80", b"\xff", b"\xf4\x90\x80\x80", b"a\xc3")]
             + [(b"\x01", BAD)]),
    "text_bytes": ("string", "bytes", [(text("é\0"), "é\0")]),
    "bytes_text": ("bytes", "string", [(text("é\0"), "é\0"), (text(b"\xff"), BAD)]),
    "enum": (enum("A", "B"), enum("B", "A"), [(number(0), "A"), (number(1), "B"), (number(2), BAD), (number(-1), BAD)]),
    "enum_default": (enum("A", "B", "C"), enum("B", "A", default="B"), [(number(0), "A"), (number(2), "B")]),
    "fixed": (fixed(2), fixed(2), [(b"ab", "ab")]),
    "optional": (["null", "int"], ["int", "null"], [(number(0), None), (number(1) + number(5), "5"), (number(2), BAD)]),
    "made_optional": ("int", ["null", "long"], [(number(-5), "-5")]),
    "other_order": (["string", "int"], ["int", "string"], [(number(0) + text("a"), "{null, a}"),
                                                           (number(1) + number(5), "{5, null}")]),
    "more_branches": (["null", "int", "string"], ["boolean", "string", "null", "long"], [
        (number(0), None), (number(1) + number(5), "{null, null, 5}"), (number(2) + text("a"), "{null, a, null}")]),
    "decimal": (logical("bytes", "decimal", **DECIMAL), logical("bytes", "decimal", **DECIMAL), [
        (text(n.to_bytes(size, "big", signed=True)), str(Decimal(n) / 100))
        for n, size in ((99_999, 3), (-99_999, 3), (-1, 1), (125, 8))]
        + [(text((100_000).to_bytes(3, "big")), BAD), (text(b""), BAD), (text(b"\x7f" + b"\xff" * 7), BAD)]),
    "decimal_fixed": (logical(fixed(8), "decimal", **DECIMAL), logical(fixed(8), "decimal", **DECIMAL), [
        ((99_999).to_bytes(8, "big"), "999.99"), ((-125).to_bytes(8, "big", signed=True), "-1.25"),
        (b"\x7f" + b"\xff" * 7, BAD), ((100_000).to_bytes(8, "big"), BAD)]),
    "decimal_large": (*[logical("bytes", "decimal", precision=38)] * 2, [
        (text((10**38 - 1).to_bytes(16, "big")), "9" * 38), (text((10**38).to_bytes(16, "big")), BAD),
        (text((2**192 + 5).to_bytes(25, "big")), BAD)]),
    "date": (*[logical("int", "date")] * 2, [
        (number(20_487), "2026-02-03"), (number(-1), "1969-12-31"), (number(-719_162), "0001-01-01")]),
    "millis": (*[logical("long", "timestamp-millis")] * 2, [
        (number(1), "1970-01-01 00:00:00.001"), (number(-1), "1969-12-31 23:59:59.999"),
        (number(2**63 // 1000 + 1), BAD), (number(2**63 - 1), BAD), (number(-(2**63)), BAD)]),
    "millis_micros": (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), [
        (number(-1), "1969-12-31 23:59:59.999"), (number(2**63 // 1000 + 1), BAD)]),
    "micros_millis": (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), [
        (number(-1), "1969-12-31 23:59:59.999999"), (number(253_402_300_800_000_000), "+10000-01-01 00:00:00")]),
    "local_millis": (*[logical("long", "local-timestamp-millis")] * 2, [
        (number(-1), "1969-12-31 23:59:59.999"), (number(2**63 - 1), BAD)]),
    "local_micros": (logical("long", "local-timestamp-micros"), logical("long", "local-timestamp-millis"), [
        (number(-1), "1969-12-31 23:59:59.999999")]),
    "time_long": (logical("long", "time-micros"), "long", [(number(45_000_000_001), "45000000001")]),
    "uuid": (*[logical("string", "uuid")] * 2, [(text("0" * 36), "0" * 36)]),
    "array": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [
        (b"\x02\x0a\x02\x0c\x00", "[5, 6]"), (b"\x01\x02\x0a\x00", "[5]"), (b"\x02\x0a", BAD), (b"\x00\x00", BAD)]),
    "map": ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "long"]}, [
        (b"\x02" + text("a") + b"\x0a\x00", "{a -> 5}"), (b"\x00", "{}"),
        (b"\x02" + text(b"\xff") + b"\x0a\x00", BAD)]),
    "nested": ({**record(a="int", b="string"), "name": "In"}, {**record(b="string", a="long"), "name": "In"}, [
        (number(-5) + text("x"), "{x, -5}")]),
}  # fmt: skip


def test_value_is_the_written_one_or_in_quarantine_when_a_type_is_resolved_to_another(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record has one value that is looked at; all others are the first of their cases."""
    monkeypatch.setattr(avro_wire, "writer_schemas", lambda: resolved)
    kinds: list[dict[str, Any]] = [{}, {}]
    for case, (*pair, _) in CASES.items():
        for side, kind in enumerate(pair):
            kinds[side][case] = named(kind, case)
    resolved, decoder = Resolved([record(**kinds[0])]), Avro("any-value", json.dumps(record(**kinds[1])))
    usual = {case: values[0][0] for case, (_, _, values) in CASES.items()}
    cells = [(case, raw, value) for case, (_, _, values) in CASES.items() for raw, value in values]
    sent = [b"".join(raw if each == case else usual[each] for each in CASES) for case, raw, _ in cells]
    frame = spark.createDataFrame([*enumerate(b"\0\0\0\0\x01" + each for each in sent)], "n INT, value BINARY")
    parsed = frame.coalesce(1).withColumn("parsed", avro_wire.parse(decoder, F.col("value")))
    failure = avro_wire.failure(decoder, F.col("value"), F.col("parsed"))
    message = F.when(failure.isNull(), avro_wire.message(F.col("parsed")).dropFields("tidemark_seal"))
    rows = parsed.select("n", failure["reason"], message.cast("string")).collect()
    wrong = []
    for n, reason, found in rows:
        case, raw, value = cells[n]
        values = [value if each == case else CASES[each][2][0][1] for each in CASES]
        expected = "{" + ", ".join("null" if each is None else str(each) for each in values) + "}"
        if (reason is None) == (value is BAD) or (value is not BAD and found != expected):
            wrong.append((case, raw, value, reason, found, expected))
    assert len(rows) == len(cells)
    assert not wrong


def named(kind: Any, case: str) -> Any:
    """Return the type with a name of its own for each case."""
    return {**kind, "name": f"{kind['name']}_{case}"} if isinstance(kind, dict) and "name" in kind else kind


@pytest.mark.parametrize("aliases", [["b"], ["c", "b"]])
def test_schema_is_unusable_when_a_field_and_its_aliases_are_several_of_its_fields(
    spark: Any, aliases: list[str]
) -> None:
    """Avro throws, and the stream ended at each start."""
    declared = record(a="long")
    declared["fields"][0]["aliases"] = aliases
    found = avro_wire._resolvable(json.dumps(record(a="long", b="long")), json.dumps(declared))
    assert isinstance(found, Unusable)
    assert found.reason == "unusable_schema"
    assert "cannot be read as the declared one" in found.detail
    assert "matches multiple fields in writer record schema" in found.detail
    assert isinstance(avro_wire._resolvable(json.dumps(record(b="long")), json.dumps(declared)), str)
