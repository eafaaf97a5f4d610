"""Bytes to fates: strict, in one pass, every record accounted for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import OWN_COLUMNS, Archive, Between, Json, SafeValue
from include.producing.generate import messages
from include.producing.messages import nest_cameras as producer
from tests.support.corpora import JSON_CASES

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
KAFKA_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def decoded(spark: Any, values: Sequence[bytes | None], *columns: str) -> dict[int, list[Any]]:
    """Rows by offset, with all columns or these; the offset is the position in the list."""
    from spark_jobs.decoding.records import decode

    rows = [(b"k", value, "nest-logs", 0, offset, NOW, [("h", b"1")]) for offset, value in enumerate(values)]
    found: dict[int, list[Any]] = {}
    frame = decode(load_pipeline("nest_cameras"), spark.createDataFrame(rows, KAFKA_DDL))
    for row in frame.select("kafka_offset", *columns or [c for c in frame.columns if c != "kafka_offset"]).collect():
        found.setdefault(row.kafka_offset, []).append(row)
    return found


def good(**changes: Any) -> dict[str, Any]:
    camera = producer._camera("cam-0001", NOW, random.Random(1))
    event = {**camera["last_event"], **{k: v for k, v in changes.items() if k in camera["last_event"]}}
    camera = {**camera, **{k: v for k, v in changes.items() if k not in event}, "last_event": event}
    return {"devices": {"cameras": {"cam-0001": camera}}}


def as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


CASES: list[tuple[str, bytes | None]] = [
    ("null_value", None),
    ("empty_value", b""),
    ("empty_value", b" \n\t"),
    ("malformed_json", b"{"),
    ("malformed_json", b"}"),
    ("malformed_json", b"{,}"),
    ("malformed_json", b'{"devices": {},}'),
    ("malformed_json", b'{"devices": {"cameras": {}}'),
    ("malformed_json", b'{"devices": {}, "x": 12'),
    ("malformed_json", b'{"devices": {}, "x": "}'),
    ("malformed_json", b'{"devices": {}, "x": "\\}'),
    ("malformed_json", b'[{"devices": {}}'),
    ("malformed_json", b"nonsense"),
    # For minutes, if the time that it takes grew with the square of its length.
    ("malformed_json", b" " * 1_000_000 + b"x"),
    ("malformed_json", b"{'devices': {}}"),
    ("malformed_json", b'{"devices": NaN}'),
    ("trailing_content", b"{}garbage"),
    ("trailing_content", b"{}}"),
    ("trailing_content", b"{}]"),
    ("trailing_content", b"{}{}"),
    ("trailing_content", b"{},{}"),
    ("trailing_content", b'{}],"x":[{}'),
    ("trailing_content", b'{}],"tidemark":[{}'),
    ("trailing_content", b"{} {}"),
    ("trailing_content", b"{}  }"),
    ("trailing_content", b'"devices": {}}'),
    ("trailing_content", b'{"devices": {}}}'),
    ("trailing_content", b'{"devices": {}}, "x": {}}'),
    ("trailing_content", b'{"devices": {}}\n{"devices": {}}'),
    ("trailing_content", b'{"devices": {}, "tidemark_seal": 1}garbage}'),
    ("wrong_type", b"[]"),
    ("wrong_type", b"[{}]"),
    ("wrong_type", b"7"),
    ("wrong_type", b'"text"'),
    ("wrong_type", b"null"),
    ("wrong_type", b'{"devices": []}'),
    ("wrong_type", as_bytes(good(has_person="perhaps"))),
    ("wrong_type", as_bytes(good(start_time="not a time"))),
    ("not_utf8", as_bytes(good()).replace(b"cam-0001", b"cam-\xff\xfe")),
    ("not_utf8", b"\xff\xfe{\x00}\x00"),
    ("too_large", b'{"metadata": null, "x": "' + b"y" * 1_048_576 + b'"}'),
    ("required_missing", as_bytes(good(device_id=None))),
    ("required_missing", as_bytes({"devices": {"cameras": {"a": None}}})),
    ("required_missing", as_bytes({"devices": {"cameras": {"a": {"device_id": "a"}}}})),
    ("event_time_out_of_bounds", as_bytes(good(start_time="2099-01-01T00:00:00.000Z"))),
    ("event_time_out_of_bounds", as_bytes(good(start_time="0001-01-01T00:00:00.000Z"))),
    ("event_time_out_of_bounds", as_bytes(good(start_time="9999-12-31T23:59:59.999Z"))),
]


def test_record_is_quarantined_whole_with_its_reason_when_it_is_bad(spark: Any) -> None:
    values = [value for _, value in CASES]
    found = decoded(spark, values)
    for offset, (reason, value) in enumerate(CASES):
        (row,) = found[offset]
        assert (row.fate, row.reason) == ("quarantined", reason), value
        assert bytes(row.value) == value if value is not None else row.value is None
        assert row.headers[0].key == "h"
        assert row.detail


def test_detail_names_a_key_twice_when_a_bad_record_has_one(spark: Any) -> None:
    found = decoded(spark, [b'{"devices": [], "x": 1, "x": 2}', b'{"devices": null, "x": 1, "x": 2}'])
    bad, good = found[0][0], found[1][0]
    assert (bad.reason, bad.detail) == ("malformed_json", "not JSON, or an object in it has a key twice")
    assert good.fate == "empty"


def test_column_is_known_as_tidemark_s_own_when_it_is_added_to_rows(spark: Any) -> None:
    from spark_jobs.archive.schema import with_partition_columns
    from spark_jobs.decoding.records import archive_columns, archive_rows, decode

    pipeline = load_pipeline("nest_cameras")
    judged = decode(pipeline, spark.createDataFrame([], KAFKA_DDL))
    columns = {*judged.columns, *with_partition_columns(pipeline, archive_rows(pipeline, judged)).columns}
    assert columns - set(archive_columns(pipeline)) == OWN_COLUMNS - {"interval"}


@pytest.mark.parametrize("rules", ["declared", "none"])
def test_event_time_is_bounded_when_no_declared_rule_refuses_it(spark: Any, rules: str) -> None:
    """A record of the year 9999, by a clock that is wrong or as a word for never: its windows end in the year 10000."""
    from spark_jobs.decoding.records import decode

    pipeline = load_pipeline("nest_cameras")
    if rules == "none":
        pipeline = replace(pipeline, archive=replace(pipeline.archive, rules=()))
    times = {
        "0001-12-31T23:59:59.999Z": "quarantined",
        "0002-01-01T00:00:00.000Z": "archived",
        "9998-12-31T23:59:59.999Z": "archived",
        "9999-01-01T00:00:00.000Z": "quarantined",
        "9999-12-31T23:30:00.000Z": "quarantined",
    }
    rows = [
        # With rules, the record's own timestamp is as wrong as the event's.
        (b"k", as_bytes(good(start_time=at)), "nest-logs", 0, offset, datetime.fromisoformat(at), [])
        for offset, at in enumerate(times)
    ]
    found = decode(pipeline, spark.createDataFrame(rows, KAFKA_DDL)).orderBy("kafka_offset").collect()
    assert [row.fate for row in found] == list(times.values())
    refused = [row for row in found if row.fate == "quarantined"]
    assert {row.reason for row in refused} == {"event_time_out_of_bounds"}
    assert all("is not within the years 2 to 9998" in row.detail for row in refused)


def test_row_per_camera_is_made_in_order_when_a_record_is_good(spark: Any) -> None:
    cameras = {f"cam-{n}": good(device_id=f"cam-{n}")["devices"]["cameras"]["cam-0001"] for n in (3, 1, 2)}
    found = decoded(spark, [as_bytes({"devices": {"cameras": cameras}, "unknown": 1})])
    assert [(row.kafka_element, row.device_id) for row in found[0]] == [(0, "cam-3"), (1, "cam-1"), (2, "cam-2")]
    assert {row.fate for row in found[0]} == {"archived"}
    assert all(row.value is None and row.date == date(2026, 11, 20) for row in found[0])
    assert found[0][0].last_event.start_time.replace(tzinfo=UTC) == NOW


def test_every_row_is_judged_when_there_are_many(spark: Any) -> None:
    """The first ones by generated code, further ones by Spark's interpreter: the first bad one is named."""

    def message(cameras: Sequence[dict[str, Any]]) -> bytes:
        each = [good(**changes)["devices"]["cameras"]["cam-0001"] for changes in cameras]
        return as_bytes({"devices": {"cameras": {f"cam-{n}": camera for n, camera in enumerate(each)}}})

    most = 7
    good_ones = [message([{}] * count) for count in range(most + 1)]
    bad_at = [
        message([{}] * at + [{"device_id": "x" * (201 + at)}] + [{"device_id": ""}] * (most - at - 1))
        for at in range(most)
    ]
    found = decoded(spark, [*good_ones, *bad_at])
    for count in range(1, most + 1):
        assert [(row.fate, row.kafka_element) for row in found[count]] == [("archived", n) for n in range(count)]
    for at in range(most):
        (row,) = found[len(good_ones) + at]
        assert (row.fate, row.reason) == ("quarantined", "value_too_long"), at
        assert row.detail.startswith(f"device_id has {201 + at} bytes"), row.detail


def test_record_is_empty_when_it_is_valid_and_has_no_cameras(spark: Any) -> None:
    values = [
        b"{}",
        b"{ }",
        b"\t{\n}\r\n",
        b"{" + b" " * 100 + b"}",
        b'{"devices": null}',
        b'{"devices": {"cameras": {}}}',
        b' {"devices": {}} ',
        b'{\n  "devices": {}\n}\n',
        b'{"devices": {}, "tidemark_seal": 5, "tidemark_corrupt": "no"}',
    ]
    for offset, (row,) in decoded(spark, values).items():
        assert (row.fate, row.reason, row.kafka_element) == ("empty", None, 0), values[offset]


def test_message_is_accepted_only_when_it_is_json(spark: Any) -> None:
    chance = random.Random(11)
    message = as_bytes(good())
    values = [mutated(message, chance) for _ in range(3000)]
    not_json = {"empty_value", "malformed_json", "trailing_content", "not_utf8"}
    found = decoded(spark, values, "reason")
    refused = [found[offset][0].reason in not_json for offset in range(len(values))]
    assert refused == [not is_json(value) for value in values]
    assert 500 < sum(refused) < 2500


def mutated(message: bytes, chance: random.Random) -> bytes:
    """The message with one or two changes, mostly of JSON's own characters, and mostly at its ends."""
    value = bytearray(message)
    for _ in range(chance.choice((1, 1, 2))):
        ends = (chance.randrange(12), len(value) - 1 - chance.randrange(12))
        at = chance.choice((*ends, chance.randrange(len(value))))
        piece = chance.choice((b"{", b"}", b"[", b"]", b",", b'"', b":", b" ", b"\n", b"0", b"}{}", b"\\", b"\xff"))
        match chance.randrange(3):
            case 0:
                value[at:at] = piece
            case 1:
                value[at : at + 1] = piece
            case _:
                del value[at : at + chance.choice((1, 3))]
    return bytes(value)


def is_json(value: bytes) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(value.decode(), parse_constant=refuse)
    except ValueError:
        return False
    return True


def test_record_is_quarantined_whole_when_one_row_is_bad(spark: Any) -> None:
    message = good()
    message["devices"]["cameras"]["bad"] = {"device_id": None}
    (row,) = decoded(spark, [as_bytes(message)])[0]
    assert (row.fate, row.reason) == ("quarantined", "required_missing")


def test_event_time_is_accepted_only_when_it_is_exactly_within_its_bounds(spark: Any) -> None:
    edges = [-timedelta(days=90), timedelta(hours=1)]
    inside = [NOW + edge for edge in edges]
    outside = [NOW + edges[0] - timedelta(milliseconds=1), NOW + edges[1] + timedelta(milliseconds=1)]
    values = [as_bytes(good(start_time=t.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z")) for t in inside + outside]
    found = decoded(spark, values)
    assert [found[n][0].fate for n in range(4)] == ["archived", "archived", "quarantined", "quarantined"]


def test_date_is_that_of_the_utc_calendar_when_a_time_is_before_1970(spark: Any) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.decoding.records import utc_date

    day, first, last = 86_400_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999
    rng = random.Random(3)
    edges = [first, last, *(n * day + around for n in (-365, -1, 0, 1, 20_777) for around in (-1, 0, 1))]
    moments = [*edges, *(rng.randrange(first, last) for _ in range(2000))]
    times = spark.createDataFrame([(each,) for each in moments], "micros BIGINT").select(F.timestamp_micros("micros"))
    found = times.toDF("at").select(utc_date(F.col("at")) == F.to_date("at")).collect()
    assert [same for (same,) in found] == [True] * len(moments)


FOLDER_NAMES = {
    "en.wikipedia.org": True,
    "2026-11-20T0500": True,
    "2026-11-20T05:00": False,
    "007": True,
    "x" * 100: True,
    "x" * 101: False,
    "": False,
    None: False,
    "__HIVE_DEFAULT_PARTITION__": False,
    "..": False,
    "a/b": False,
    "a\\b": False,
    "a%2Fb": False,
    "name\n": False,
    "na\x1b[31mme": False,
    "déjà": False,
    "a b": False,
}
"""Names and whether a folder may have them."""


def test_value_is_quarantined_when_it_is_not_a_safe_folder_name(spark: Any) -> None:
    from spark_jobs.decoding.records import decode

    pipeline = load_pipeline("nest_cameras")
    rules = (*pipeline.archive.rules, SafeValue("where_name"))
    declared = replace(pipeline, archive=replace(pipeline.archive, rules=rules))
    rows = [
        (b"k", as_bytes(good(where_name=value)), "nest-logs", 0, offset, NOW, [("h", b"1")])
        for offset, value in enumerate(FOLDER_NAMES)
    ]
    found = decode(declared, spark.createDataFrame(rows, KAFKA_DDL)).orderBy("kafka_offset").collect()
    for (value, safe), row in zip(FOLDER_NAMES.items(), found, strict=True):
        expected = ("archived", None) if safe else ("quarantined", "unsafe_partition_value")
        assert (row.fate, row.reason) == expected, value
        assert safe or row.detail.isprintable(), value


def test_rows_may_take_key_and_headers_when_the_archive_declares_it(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import Column
    from pyspark.sql import functions as F

    from spark_jobs.decoding import records

    def rows(message: Column, record: Column) -> Column:
        header = F.get(F.filter(record["headers"], lambda each: each["key"] == "h"), F.lit(0))["value"]
        return F.array(
            F.struct(
                message["at"].alias("at"),
                record["key"].cast("string").alias("named"),
                header.cast("string").alias("h"),
                record["offset"].alias("position"),
            )
        )

    columns = "at TIMESTAMP, named STRING, h STRING, position BIGINT"
    archive = Archive(rows="rows", takes_record=True, columns=columns, event_time="at")
    declared = replace(
        load_pipeline("nest_cameras"), decoder=Json(schema="at TIMESTAMP"), archive=archive, views=(), reports=()
    )
    monkeypatch.setattr(records, "transform", lambda pipeline, name: rows)
    value = b'{"at": "2026-11-20T05:00:00Z"}'
    frame = spark.createDataFrame(
        [(b"k", value, "t", 1, 7, NOW, [("x", b"0"), ("h", b"1")]), (None, value, "t", 1, 8, NOW, [])], KAFKA_DDL
    )
    found = [(row.named, row.h, row.position) for row in records.decode(declared, frame).collect()]
    assert found == [("k", "1", 7), (None, None, 8)]


RINGS = "bell_id STRING, reading DOUBLE, n INT, price DECIMAL(5, 2), at TIMESTAMP, of STRUCT<a: INT, b: ARRAY<INT>>"


@pytest.mark.parametrize(
    ("columns", "returned"),
    [
        ("reading FLOAT", "reading as double"),
        ("reading DECIMAL(12, 2)", "reading as double"),
        ("n TINYINT", "n as int"),
        ("n STRING", "n as int"),
        ("price DECIMAL(5, 1)", "price as decimal(5,2)"),
        ("price DECIMAL(6, 4)", "price as decimal(5,2)"),
        ("of STRUCT<a: INT, b: ARRAY<STRING>>", "of as struct<a:int,b:array<int>>"),
        ("of STRUCT<b: ARRAY<INT>, a: INT>", "of as struct<a:int,b:array<int>>"),
        ("of STRUCT<a: INT>", "of as struct<a:int,b:array<int>>"),
        ("volume INT", "no column volume"),
        ("reading DOUBLE", ""),
        ("READING DOUBLE", ""),
        ("n BIGINT", ""),
        ("price DECIMAL(12, 4)", ""),
        ("of STRUCT<a: BIGINT, B: ARRAY<BIGINT>>", ""),
    ],
)
@pytest.mark.parametrize("shape", ["a struct", "an array"])
def test_declaration_is_refused_when_rows_have_other_types(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: str, returned: str, shape: str
) -> None:
    """Landing files would have the types of the rows, and intervals read them by the declared ones."""
    from pyspark.sql import functions as F

    from spark_jobs.decoding import records

    archive = Archive(rows="rings", columns=f"at TIMESTAMP, {columns}", event_time="at")
    pipeline = replace(load_pipeline("nest_cameras"), decoder=Json(schema=RINGS), archive=archive, views=(), reports=())
    monkeypatch.setattr(
        records, "transform", lambda pipeline, name: F.array if shape == "an array" else lambda message: message
    )
    frame = spark.createDataFrame([], KAFKA_DDL)
    if not returned:
        assert "at" in records.decode(pipeline, frame).columns
        return
    with pytest.raises(UsageError) as refused:
        records.decode(pipeline, frame)
    assert f"nest_cameras: the transform rings of the archive returns {returned}, declared as " in str(refused.value)


def test_record_is_quarantined_undecoded_when_it_is_withheld(spark: Any) -> None:
    from spark_jobs.decoding.poison import withhold
    from spark_jobs.decoding.records import decode

    rows = [(b"k", as_bytes(good()), "nest-logs", 0, offset, NOW, [("h", b"1")]) for offset in range(3)]
    withheld = withhold({("nest-logs", 0, 1): "it threw", ("nest-logs", 1, 0): "another"})
    found = decode(load_pipeline("nest_cameras"), spark.createDataFrame(rows, KAFKA_DDL), withheld).collect()
    assert [(row.fate, row.reason, row.detail) for row in found] == [
        ("archived", None, None),
        ("quarantined", "poison", "it threw"),
        ("archived", None, None),
    ]
    assert bytes(found[1].value) == as_bytes(good())
    assert found[1].kafka_timestamp.replace(tzinfo=UTC) == NOW


def test_document_is_accepted_or_refused_as_the_corpus_says_when_it_is_json(spark: Any) -> None:
    """Each case as one field of a message: `y_` must decode, `n_` must not, nothing may vanish."""
    files = JSON_CASES
    # JSON with bytes that no message may have, or too deep for readers, is refused on purpose.
    values = [b'{"unknown": ' + path.read_bytes() + b"}" for path in files]
    found = decoded(spark, values)
    assert sorted(found) == list(range(len(files)))
    wrong = []
    for number, path in enumerate(files):
        (row,) = found[number]
        if (path.name.startswith("y_") and row.fate != "empty") or (
            path.name.startswith("n_") and row.fate != "quarantined" and not closes_the_wrapper(path.read_bytes())
        ):
            wrong.append((path.name, row.fate, row.reason))
    assert wrong == []


def closes_the_wrapper(value: bytes) -> bool:
    """Whether a refused case becomes valid JSON as the value of a field, e.g. by closing the object itself."""
    try:
        json.loads(b'{"unknown": ' + value + b"}")
    except ValueError:
        return False
    return True


def test_value_is_parsed_once_when_it_is_decoded(spark: Any) -> None:
    from spark_jobs.decoding.records import decode

    frame = spark.createDataFrame([], KAFKA_DDL)
    plan = decode(load_pipeline("nest_cameras"), frame)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(") == 1
    # Spark interprets whatever is asked inside of it.
    assert "xxhash64" not in plan.partition("from_json(")[2].partition(" AS parsed")[0]


@pytest.mark.parametrize("name", ["auction_bids", "isp_hits", "wiki_changes"])
def test_no_struct_is_made_when_a_row_is_all_of_a_message(spark: Any, name: str) -> None:
    from spark_jobs.decoding.records import decode

    plan = whole_plan(spark, lambda frame: decode(load_pipeline(name), frame))
    # By the name of its first field, what any struct is made of: failures alone.
    assert set(re.findall(r"\bstruct\((\w+),", plan)) == {"reason"}


@pytest.mark.parametrize("name", ["auction_bids", "isp_hits", "nest_cameras", "wiki_changes"])
def test_rows_are_judged_once_when_only_archived_ones_are_kept(spark: Any, name: str) -> None:
    from spark_jobs.decoding.records import archive_rows, decode

    pipeline = load_pipeline(name)
    every = whole_plan(spark, lambda frame: decode(pipeline, frame))
    kept = whole_plan(spark, lambda frame: archive_rows(pipeline, decode(pipeline, frame)))
    assert "Filter" in kept
    for asked in ("from_json(", "event_time_out_of_bounds", "required_missing", ".isValid()"):
        assert kept.count(asked) == every.count(asked) > 0, asked


def whole_plan(spark: Any, query: Callable[[Any], Any]) -> str:
    """The optimized plan of a query over Kafka records, with all fields of every line."""
    # Over literal rows nothing would be left to plan.
    frame = spark.createDataFrame([], KAFKA_DDL).localCheckpoint()
    spark.conf.set("spark.sql.debug.maxToStringFields", 1000)
    try:
        return str(query(frame)._jdf.queryExecution().optimizedPlan().toString())
    finally:
        spark.conf.unset("spark.sql.debug.maxToStringFields")


def test_row_is_judged_alike_when_it_is_alone_or_in_an_array(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways of one decoding: field by field, and as a struct. Where there is no row, both say so."""
    from pyspark.sql import Column
    from pyspark.sql import functions as F

    from spark_jobs.decoding import poison, records

    pipeline = load_pipeline("auction_bids")
    bids = records.transform(pipeline, pipeline.archive.rows)
    in_array = False

    def some(message: Column) -> Column:
        bid = bids(message)
        return F.when(F.substring("kafka_offset", -1, 1) != "3", F.array(bid) if in_array else bid)

    made = messages(pipeline, events=600, seed=7, bad_fraction=0.3, start=NOW, span=timedelta(minutes=5))
    rows = [(key, value, "auction-bids", 0, n, moment, []) for n, (moment, key, value, _) in enumerate(made)]
    frame = spark.createDataFrame(rows, KAFKA_DDL)
    withheld = poison.withhold({("auction-bids", 0, 5): "it threw"})
    monkeypatch.setattr(records, "transform", lambda pipeline, name: some)

    def found() -> list[Any]:
        return records.decode(pipeline, frame, withheld).orderBy("kafka_offset").collect()

    field_by_field = found()
    in_array = True
    assert found() == field_by_field
    assert {row.fate for row in field_by_field} == {"archived", "empty", "quarantined"}
    reasons = {row.reason for row in field_by_field}
    assert {None, "poison", "malformed_json", "required_missing"} <= reasons, reasons


def test_limit_of_bytes_is_the_decoder_s_when_it_declares_one(spark: Any) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.decoding import strict_json

    decoder = Json(schema="a INT", max_bytes=8)
    frame = spark.createDataFrame([(b'{"a": 1}',), (b'{"a": 12}',)], "value BINARY")
    parsable = frame.withColumn("parsable", strict_json.parsable(decoder, F.col("value")))
    parsed = parsable.withColumn("parsed", strict_json.parse(decoder, F.col("parsable")))
    rows = parsed.select(strict_json.failure(decoder, F.col("value"), F.col("parsed")).alias("failure")).collect()
    assert [row.failure and row.failure.reason for row in rows] == [None, "too_large"]


def test_bad_message_is_quarantined_for_its_reason_when_it_is_generated(spark: Any) -> None:
    from include.producing.generate import messages

    made = list(
        messages(
            load_pipeline("nest_cameras"), events=300, seed=3, bad_fraction=0.5, start=NOW, span=timedelta(seconds=1)
        )
    )
    found = decoded(spark, [value for _, _, value, _ in made])
    reasons = [reason for _, _, _, reason in made]
    assert [found[n][0].reason or "" for n in range(300)] == reasons
    assert Path(producer.__file__).stem == "nest_cameras"


def test_detail_names_bounds_in_full_when_they_have_many_digits(spark: Any) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType

    from spark_jobs.decoding.rules import _out_of_range

    frame = spark.createDataFrame([(1234568.0,)], "reading DOUBLE")
    _, why = _out_of_range({"reading": F.col("reading")}, "reading", 0.0001234567, 1234567, DoubleType())
    (row,) = frame.select(why.alias("why")).collect()
    assert (row.why.reason, row.why.detail) == (
        "out_of_range",
        "reading is not within 0.0001234567 and 1234567: 1234568.0",
    )


def test_transform_is_named_when_it_asks_for_a_field_that_a_message_does_not_have(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.decoding import records

    monkeypatch.setattr(records, "transform", lambda pipeline, name: lambda message: message["devises"])
    with pytest.raises(UsageError) as refused:
        records.decode(load_pipeline("nest_cameras"), spark.createDataFrame([], KAFKA_DDL))
    said = str(refused.value)
    assert said.startswith(
        "nest_cameras: Spark refuses the function cameras of spark_jobs/transforms/nest_cameras.py: ["
    )
    assert "FIELD_NOT_FOUND" in said
    assert "devises" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("kind", "path", "reading"),
    [
        ("FLOAT", "reading", "float(value)"),
        ("DOUBLE", "reading", "double(value)"),
        ("MAP<STRING, FLOAT>", "reading.m", "map('m', float(value))"),
    ],
)
def test_value_is_within_bounds_when_it_is_one_of_them_as_its_column_holds_it(
    spark: Any, kind: str, path: str, reading: str
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.decoding.rules import violation

    values = ("-0.7", "0.1", "-0.71", "0.11", "3.4028235e38", "Infinity", "-Infinity", "NaN")
    rows = spark.createDataFrame([(each,) for each in values], "value STRING")
    row = {"reading": F.expr(reading), "at": F.lit(NOW)}

    def kept(low: float, high: float) -> list[str]:
        rules = (Between(path, low, high),)
        archive = Archive(rows="any", columns=f"reading {kind}, at TIMESTAMP", event_time="at", rules=rules)
        pipeline = replace(load_pipeline("nest_cameras"), archive=archive, views=(), reports=())
        return [each.value for each in rows.where(violation(pipeline, row).isNull()).collect()]

    assert kept(-0.7, 0.1) == ["-0.7", "0.1"]
    # No FLOAT is as large.
    assert kept(-1e300, 1e300) == list(values[:5])
