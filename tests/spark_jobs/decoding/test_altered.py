"""Texts of which Spark would make another value than they say are refused, wherever they stand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.pipelines.spec import Csv, Json, KafkaDeserializer
from spark_jobs.decoding.decoders import decoding_of
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

SCHEMA = """
    at TIMESTAMP, day DATE, price DECIMAL(10, 2), `any` STRING, x DOUBLE, f FLOAT, n BIGINT,
    `in` STRUCT<at: TIMESTAMP, price: DECIMAL(5, 0), x: DOUBLE>,
    times ARRAY<TIMESTAMP>, each ARRAY<STRUCT<at: TIMESTAMP, x: DOUBLE, deep: ARRAY<ARRAY<DOUBLE>>>>,
    by_key MAP<STRING, TIMESTAMP>, prices MAP<STRING, ARRAY<DECIMAL(38, 18)>>, numbers MAP<STRING, STRUCT<x: FLOAT>>
"""


def judged(spark: Any, decoder: Any, values: Sequence[bytes]) -> list[Any]:
    """Return the message of each value as text, or reason and detail."""
    decoding = decoding_of(decoder)
    frame = spark.createDataFrame(list(enumerate(values)), "number INT, value BINARY")
    if isinstance(decoder, KafkaDeserializer):
        returned = F.struct(F.col("value").cast("string").alias("json"), F.lit(None).cast("string").alias("error"))
        parsable = frame.withColumn("parsable", returned)
    else:
        parsable = frame.withColumn("parsable", decoding.parsable(decoder, F.col("value")))
    parsed = parsable.withColumn("parsed", decoding.parse(decoder, F.col("parsable")))
    found = parsed.select(
        "number",
        decoding.message(F.col("parsed")).cast("string").alias("message"),
        decoding.failure(decoder, F.col("value"), F.col("parsed")).alias("failure"),
    ).collect()
    rows = sorted(found, key=lambda row: row.number)
    return [tuple(row.failure) if row.failure else row.message for row in rows]


DECODERS: dict[str, Callable[[str], Any]] = {
    "json": Json,
    "deserializer": lambda schema: KafkaDeserializer(REPOSITORY / "any.jar", "a.Class", schema),
}

REFUSED = {
    '{"at": "12:30"}': "at is a time without a date",
    '{"at":"T12:30:00.5Z"}': "at is a time without a date",
    '{"at":"T1"}': "at is a time without a date",
    '{"at": " 1:2:3"}': "at is a time without a date",
    '{"at":"\\u00312:30"}': "at is a time without a date",
    '{"at":"1\\u0032:30"}': "at is a time without a date",
    '{"at":"12\\u003a30"}': "at is a time without a date",
    '{"at":"\\t12:30"}': "at is a time without a date",
    '{"at":"\\u005412:30"}': "at is a time without a date",
    '{"\\u0061t":"12:30"}': "at is a time without a date",
    '{"in":{"at":"12:30"}}': "in.at is a time without a date",
    '{"times":["2026-11-20T12:30:00Z",null,"12:30"]}': "times[] is a time without a date",
    '{"each":[null,{},{"at":"12:30"}]}': "each[].at is a time without a date",
    '{"by_key":{"a":null,"b":"12:30"}}': "by_key.* is a time without a date",
    '{"price":1.005}': "price has more than 2 digits after the point",
    '{"price":"1.005"}': "price has more than 2 digits after the point",
    '{"price":"1\\u002e005"}': "price has more than 2 digits after the point",
    '{"price":15e-3}': "price has more than 2 digits after the point",
    '{"price":15E-3 , "n":1}': "price has more than 2 digits after the point",
    '{"price":12345678.9999999999999999999999}': "price has more than 2 digits after the point",
    '{"in":{"price":0.1}}': "in.price has more than 0 digits after the point",
    '{"prices":{"a":[1,0.1234567890123456789]}}': "prices.*[] has more than 18 digits after the point",
}

INFINITE = {
    '{"x":1E400}': "x is beyond the range of DOUBLE",
    '{"x":-1E400}': "x is beyond the range of DOUBLE",
    '{"f":1e39}': "f is beyond the range of FLOAT",
    '{"x":%s}' % ("9" * 400): "x is beyond the range of DOUBLE",
    '{"in":{"x":1E400}}': "in.x is beyond the range of DOUBLE",
    '{"each":[null,{"x":null},{"x":1E400}]}': "each[].x is beyond the range of DOUBLE",
    '{"each":[{"deep":[null,[1,null],[-1E400]]}]}': "each[].deep[][] is beyond the range of DOUBLE",
    '{"numbers":{"a":null,"b":{"x":1E39}}}': "numbers.*.x is beyond the range of FLOAT",
}

KEPT = [
    '{"at":"2026-11-20T12:30:00Z","any":"12:30"}',
    '{"at":"2026-11-20 12:30","any":"T1"}',
    '{"at":1700000000,"any":"1.005"}',
    '{"at":"2026","any":"1E400"}',
    '{"at":null,"any":{"at":"12:30","price":1.005}}',
    '{"unknown":{"at":"12:30","price":1.005,"x":1E400}}',
    '{"at":"12:30","at":"2026-11-20"}',
    '{"price":1.50}',
    '{"price":1.500}',
    '{"price":"1.500"}',
    '{"price":12.345e1}',
    '{"price":150e-2}',
    '{"price":12345678.99}',
    '{"price":-12345678}',
    '{"prices":{"a":[0.123456789012345678,12345678901234567890.5,null]}}',
    '{"x":1.7976931348623157e308,"f":3.4e38,"in":{"x":1e-400}}',
    '{"day":"2026-11-20"}',
    '{"each":[],"times":[],"by_key":{},"numbers":{}}',
]


@pytest.mark.parametrize("kind", DECODERS)
def test_record_is_refused_when_spark_would_read_another_value(spark: Any, kind: str) -> None:
    found = judged(spark, DECODERS[kind](SCHEMA), [each.encode() for each in REFUSED])
    assert found == [("wrong_type", detail) for detail in REFUSED.values()]


@pytest.mark.parametrize("kind", DECODERS)
def test_record_is_kept_when_only_text_looks_like_another_value(spark: Any, kind: str) -> None:
    found = judged(spark, DECODERS[kind](SCHEMA), [each.encode() for each in KEPT])
    assert [(value, each) for value, each in zip(KEPT, found, strict=True) if not isinstance(each, str)] == []


def test_record_is_refused_when_a_number_of_json_is_infinite(spark: Any) -> None:
    found = judged(spark, Json(SCHEMA), [each.encode() for each in INFINITE])
    assert found == [("wrong_type", detail) for detail in INFINITE.values()]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("text", ["20261120", "7"])
def test_date_is_refused_when_it_is_a_number_of_days(spark: Any, kind: str, text: str) -> None:
    ((reason, _),) = judged(spark, DECODERS[kind](SCHEMA), [b'{"day":"%s"}' % text.encode()])
    assert reason == "wrong_type"


def test_reason_is_that_of_the_whole_value_when_it_is_no_message_anyway(spark: Any) -> None:
    values = [b'{"at":"12:30"', b'{"at":"12:30"}{}', b'{"at":"12:30"}}', b'[{"at":"12:30"}]', b'{"at":"12:30","n":"x"}']
    found = judged(spark, Json(SCHEMA), values)
    assert [reason for reason, _ in found] == [
        "malformed_json", "trailing_content", "trailing_content", "wrong_type", "wrong_type",
    ]  # fmt: skip


def test_nothing_is_parsed_twice_when_no_declared_type_can_be_another_value(spark: Any) -> None:
    decoder = Json("a STRING, b ARRAY<STRUCT<c: DOUBLE, d: DATE>>, at TIMESTAMP_NTZ")
    frame = spark.createDataFrame([], "value STRING").localCheckpoint()
    parsed = decoding_of(decoder).parse(decoder, F.col("value")).alias("parsed")
    plan = frame.select(parsed)._jdf.queryExecution().optimizedPlan()
    assert plan.toString().count("from_json(") == 1
    assert "RLIKE" not in plan.toString()


CSV = Csv("at TIMESTAMP, price DECIMAL(10, 2), x DOUBLE, f FLOAT, `any` STRING", separator="|")


def test_csv_line_is_refused_when_spark_would_read_another_value(spark: Any) -> None:
    refused = {
        "12:30||||": "at is a time without a date",
        "T12||||": "at is a time without a date",
        '"12:30"||||': "at is a time without a date",
        "|1.005|||": "price has more than 2 digits after the point",
        "|15e-3|||": "price has more than 2 digits after the point",
        "||1E400||": "x is beyond the range of DOUBLE",
        f"||{'9' * 400}||": "x is beyond the range of DOUBLE",
        "|||-1e39|": "f is beyond the range of FLOAT",
    }
    found = judged(spark, CSV, [each.encode() for each in refused])
    assert found == [("malformed_csv", detail) for detail in refused.values()]


def test_csv_line_is_kept_when_only_text_looks_like_another_value(spark: Any) -> None:
    kept = ["2026-11-20T12:30:00Z|1.500|1e39|1e38|12:30", "||-Inf|Inf|1E400", "||NaN|NaN|1.005", '||||"T1"', "|1e2|||"]
    found = judged(spark, CSV, [each.encode() for each in kept])
    assert [each for each in found if not isinstance(each, str)] == []


def test_no_value_depends_on_the_day_when_a_text_is_taken_for_a_timestamp(spark: Any) -> None:
    """By what Spark itself makes of random texts: a time of today comes only from a text without a date."""
    chance = random.Random(5)
    texts = [random_time(chance) for _ in range(20_000)]
    escaped = ["".join(f"\\u{ord(c):04x}" if chance.random() < 0.2 else json.dumps(c)[1:-1] for c in t) for t in texts]
    decoder = Json("at TIMESTAMP")
    found = judged(spark, decoder, [f'{{"at":"{each}"}}'.encode() for each in escaped])
    frame = spark.createDataFrame(list(enumerate(texts)), "number INT, text STRING")
    days = "abs(date_diff(cast(try_cast(text AS TIMESTAMP) AS DATE), current_date()))"
    cast = [row.days for row in frame.selectExpr("number", f"{days} AS days").orderBy("number").collect()]
    accepted = [isinstance(each, str) for each in found]
    assert accepted == [days is not None and days > 2 for days in cast]
    assert sum(accepted) > 100
    assert sum(days is not None and days <= 2 for days in cast) > 1000


def random_time(chance: random.Random) -> str:
    forms = ["12:30", "T12:30", "T1", "1:2:3", "T12:30:00Z", "12:30:00.5", "1999-11-20", "1999-11-20 12:30", "1999"]
    text = list(chance.choice(forms))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        at, piece = chance.randrange(len(text)), chance.choice("01T:-+ Z.\0\t\x7f\x85é")
        text[at : at + chance.randrange(2)] = piece
    return "".join(text)
