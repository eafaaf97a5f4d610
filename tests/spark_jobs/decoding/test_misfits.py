"""Fields of a message that are named as none of their types are those for which Spark refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from include.pipelines.spec import Json, Text
from include.quarantine.misfits import misfits

TYPES = (
    "BOOLEAN", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(12, 2)", "DECIMAL(3, 3)", "DECIMAL",
    "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRUCT<a: INT>", "ARRAY<INT>", "MAP<STRING, INT>",
)  # fmt: skip
VALUES = (
    "null", "true", '"true"', "0", "-1", "-32769", "32768", "2147483648", "9223372036854775808", "0.5", "1e3",
    "123456789012.5", "9999999999.99", "0.9995", '"lots"', '"7"', '"7.25"', '"1,5"', '"NaN"', '"Infinity"', '"AQ=="',
    '"2026-11-20"', '"2026-11-20T05:02:00Z"', '"2026-11-20 05:02"', '"2026-11"', '"2026"', '"20261120"', '"at noon"',
    '"20.11.2026"', '"2026-13-01"', '"2026-11-20x"', '"05:02"', '"T05:02:00"', '" 2026-11-20 "', '"+12026-01-01"',
    "1795000000", "[]", "[1]", '["a"]', "[null]", "{}", '{"a": 1}', '{"a": "b"}', '{"b": 2.5}',
)  # fmt: skip
NOT_SURE = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL", "DECIMAL(3, 3)", "BINARY"})
"""Types with texts of which only Spark knows whether it reads them, and decimals that are rounded."""


def record(value: bytes, reason: str = "wrong_type") -> dict[str, Any]:
    return {"value": value, "reason": reason}


@pytest.mark.spark
def test_field_is_named_when_spark_refuses_its_value_and_never_when_it_reads_it(spark: Any) -> None:
    from spark_jobs.decoding.strict_json import failure, parsable, parse

    rows = [(value, f'{{"x": {{"f": {value}}}}}'.encode()) for value in VALUES]
    wrong, unsure = [], []
    for kind in TYPES:
        decoder = Json(f"x STRUCT<f: {kind}>")
        frame = spark.createDataFrame(rows, "literal STRING, value BINARY")
        parsed = frame.withColumn("parsed", parse(decoder, parsable(decoder, frame["value"])))
        for row in parsed.select("literal", "value", failure(decoder, frame["value"], parsed["parsed"])).collect():
            literal, value, failed = row
            named = misfits(decoder, record(bytes(value)))
            if bool(named) and not failed:
                wrong.append((kind, literal, named))
            elif failed and failed.reason == "wrong_type" and not named:
                unsure.append((kind, literal))
    assert not wrong
    assert {kind for kind, _ in unsure} <= NOT_SURE, unsure
    assert len(unsure) < 30, unsure


def test_each_field_is_named_with_its_place_and_what_is_declared() -> None:
    decoder = Json("bids ARRAY<STRUCT<amount: DECIMAL(12, 2), by: STRING>>, at TIMESTAMP, tags MAP<STRING, INT>")
    value = {"bids": [{"amount": "1.5", "by": 7}, {"amount": "lots"}, 3], "at": "at noon", "tags": {"a": 1, "b": "é"}}
    assert misfits(decoder, record(json.dumps(value).encode())) == [
        'bids[1].amount is text, "lots", and DECIMAL(12, 2) is declared',
        "bids[2] is a number, 3, and STRUCT is declared",
        'at is text, "at noon", and TIMESTAMP is declared',
        'tags["b"] is text, "\\u00e9", and INT is declared',
    ]
    assert misfits(decoder, record(b"[1, 2]")) == ["the message is an array, [1, 2], and STRUCT is declared"]


@pytest.mark.parametrize("value", [b"{", b'{"at": NaN}', b"[" * 100_000, b'{"at": ' + b"9" * 5000 + b"}", b"null"])
def test_nothing_is_named_when_it_cannot_be_told(value: bytes) -> None:
    decoder = Json("at TIMESTAMP")
    assert misfits(decoder, record(value)) == []
    assert misfits(decoder, record(b'{"at": "noon"}', "trailing_content")) == []
    assert misfits(Text(), record(b'{"at": "noon"}')) == []
