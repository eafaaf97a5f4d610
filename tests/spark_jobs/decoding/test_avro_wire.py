"""Avro in the wire format: every version read as the newest, every broken value with its reason, a real registry."""

from __future__ import annotations

import io
import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from include import lake
from include.errors import ServiceUnreachable
from include.ledger.quarantine import RecordKey
from include.pipelines.gps_positions import PIPELINE, VERSIONS
from include.producing.messages.gps_positions import Vehicles, encode
from include.quarantine import Quarantined
from include.schemas.logical_types import in_units_of
from include.schemas.registry import registry
from include.schemas.writer_schemas import MAX_SCHEMA_DEPTH, writer_schemas
from tests.conftest import REPOSITORY, Home
from tests.support.registry_gate import Gate, open_gate

pytestmark = [pytest.mark.services, pytest.mark.spark]

COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
MOMENT = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
POSITION = {
    "timestamp": int(MOMENT.timestamp() * 1000),
    "deviceId": 7,
    "latitude": 45.5,
    "longitude": 3.0,
    "altitude": 300.0,
    "speed": 50.0,
}
OTHER = json.dumps({"type": "record", "name": "Other", "fields": [{"name": "words", "type": "string"}]})


@pytest.fixture(scope="module")
def gate(in_process: Home) -> Iterator[Gate]:
    """The module's registry behind a gate; schemas on disk and in this process are discarded with the gate."""
    import os

    from include.settings import settings

    in_process.run("up", "registry")
    with open_gate(in_process.address("registry")) as opened:
        os.environ["TIDEMARK_REGISTRY_URL"] = opened.url
        settings.cache_clear()
        writer_schemas.cache_clear()
        yield opened
        del os.environ["TIDEMARK_REGISTRY_URL"]
        settings.cache_clear()
        writer_schemas.cache_clear()


@pytest.fixture(scope="module")
def ids(gate: Gate) -> list[int]:
    return registry().register("gps-value", VERSIONS)


@pytest.fixture
def another_process(gate: Gate) -> Iterator[Gate]:
    """Return the schemas of a new process, which has only those on disk."""
    writer_schemas.cache_clear()
    yield gate
    gate.answer = None
    writer_schemas.cache_clear()


def decoded(spark: Any, values: list[bytes | None], pipeline: Any = PIPELINE) -> list[Any]:
    from spark_jobs.decoding.records import decode

    rows = [(None, value, "gps", 0, number, MOMENT, 0, []) for number, value in enumerate(values)]
    found = decode(pipeline, spark.createDataFrame(rows, COLUMNS)).collect()
    return sorted(found, key=lambda row: row["kafka_offset"])


def reasons(spark: Any, values: list[bytes | None], **changes: Any) -> list[str | None]:
    pipeline = replace(PIPELINE, decoder=replace(PIPELINE.decoder, **changes))
    return [row["reason"] for row in decoded(spark, values, pipeline)]


def value(schema_id: int, schema: str, record: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(schema)), record)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


def test_each_version_is_read_as_the_newest_when_records_have_several(spark: Any, ids: list[int]) -> None:
    values: list[bytes | None] = [
        encode(ids[0], 0, POSITION),
        encode(ids[1], 1, {**POSITION, "accuracy": 4}),
        encode(ids[2], 2, {**POSITION, "accuracy": 4.5}),
    ]
    rows = decoded(spark, values)
    assert [row["fate"] for row in rows] == ["archived"] * 3
    assert [row["accuracy"] for row in rows] == [-1.0, 4.0, 4.5]
    assert {(row["deviceId"], row["latitude"], row["speed"]) for row in rows} == {(7, 45.5, 50.0)}
    assert {row["timestamp"] for row in rows} == {MOMENT.replace(tzinfo=None)}


def test_value_is_parsed_once_when_only_archived_rows_are_kept(spark: Any, ids: list[int]) -> None:
    """Otherwise the speed query has more code than a method may have, and Spark interprets all of it."""
    from spark_jobs.decoding.records import archive_rows, decode

    positions = [POSITION, *({**POSITION, "accuracy": 4} for _ in VERSIONS[1:])]
    values = [encode(ids[version], version, position) for version, position in enumerate(positions)]
    rows = [(None, value, "gps", 0, number, MOMENT, 0, []) for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, COLUMNS).localCheckpoint()
    every = decode(PIPELINE, frame)
    kept = archive_rows(PIPELINE, every)
    # A bad value is parsed once more, for its reason.
    parses, parses_of_kept = (
        each._jdf.queryExecution().optimizedPlan().toString().count("from_avro(") for each in (every, kept)
    )
    assert parses_of_kept == parses == 2 * len(VERSIONS)
    assert kept.count() == len(VERSIONS)


def test_golden_values_come_out_as_written_when_they_are_decoded(spark: Any, ids: list[int]) -> None:
    """Bodies in hexadecimal as the devices wrote them once; the schema ids are this registry's."""
    from spark_jobs.decoding.records import decode

    lines = (REPOSITORY / "tests" / "golden" / "gps_positions" / "values.jsonl").read_text().splitlines()
    golden = [json.loads(line) for line in lines]
    rows = []
    for offset, each in enumerate(golden):
        whole = b"\0" + ids[each["version"] - 1].to_bytes(4, "big") + bytes.fromhex(each["body"])
        rows.append((None, whole, "gps", 0, offset, datetime.fromisoformat(each["timestamp"]), 0, []))
    found = decode(PIPELINE, spark.createDataFrame(rows, COLUMNS)).orderBy("kafka_offset").collect()
    assert [row["reason"] for row in found] == [each.get("reason") for each in golden]
    for row, each in zip(found, golden, strict=True):
        expected = each.get("row", {})
        values = {name: row[name] for name in expected}
        assert values == {**expected, **({"timestamp": row["timestamp"]} if expected else {})}
        if expected:
            assert row["timestamp"] == datetime.fromisoformat(expected["timestamp"])


def test_field_is_ignored_when_the_code_does_not_know_it(spark: Any, ids: list[int]) -> None:
    newer = json.loads(VERSIONS[-1])
    newer["fields"].append({"name": "heading", "type": ["null", "string"], "default": None})
    (newest,) = registry().register("gps-value", [json.dumps(newer)])
    (row,) = decoded(spark, [value(newest, json.dumps(newer), {**POSITION, "accuracy": 1.0, "heading": "north"})])
    assert (row["fate"], row["accuracy"]) == ("archived", 1.0)


def test_broken_form_has_its_reason_when_it_is_decoded(spark: Any, ids: list[int]) -> None:
    from include.producing.broken_messages import broken_avro

    good = encode(ids[1], 1, {**POSITION, "accuracy": 300})
    forms = [form for seed in range(20) for form in broken_avro(good, 100_000, random.Random(seed))[:-1]]
    forms.append(broken_avro(good, 100_000, random.Random(1))[-1])
    found = reasons(spark, [broken for _, broken in forms], max_bytes=100_000)
    assert found == [reason for reason, _ in forms]


def test_cut_or_added_byte_is_noticed_when_a_value_has_one(spark: Any, ids: list[int]) -> None:
    good = encode(ids[2], 2, {**POSITION, "accuracy": 4.5})
    cut: list[bytes | None] = [good[:length] for length in range(5, len(good))]
    more = [bytes([byte]) * count for byte in (0, 1, 0x80, 0xFF) for count in (1, 15, 16, 17)]
    longer: list[bytes | None] = [good + each for each in more]
    assert reasons(spark, [good, *cut, *longer]) == [
        None,
        *["truncated"] * len(cut),
        *["trailing_bytes"] * len(longer),
    ]


def test_number_is_malformed_when_it_is_longer_than_any(spark: Any, ids: list[int]) -> None:
    header = b"\0" + ids[0].to_bytes(4, "big")
    assert reasons(spark, [header + b"\xff" * 60, header]) == ["malformed_avro", "truncated"]


OF_ANY_LENGTH: dict[str, Any] = {
    "string": "string",
    "bytes": "bytes",
    "array": {"type": "array", "items": "long"},
    "map": {"type": "map", "values": "long"},
}


@pytest.mark.parametrize("case", list(OF_ANY_LENGTH))
def test_record_is_malformed_when_it_says_it_is_longer_than_the_memory(spark: Any, gate: Gate, case: str) -> None:
    """Avro reserves that memory before it reads: without limits, the JVM ends."""
    schema = record_of(OF_ANY_LENGTH[case])
    longest = io.BytesIO()
    fastavro.schemaless_writer(longest, "long", 2**31 - 9)
    _, failure = read(spark, schema, longest.getvalue() + b"\0\0", schema, f"longest-{case}-value")
    assert failure == ("malformed_avro", "not a record of its schema")


def test_nested_types_and_blocks_are_whole_when_any_encoder_wrote_them(spark: Any, ids: list[int]) -> None:
    # One block with its size, as some encoders write it: a longer encoding of the same record.
    schema = {"type": "record", "name": "T", "fields": [{"name": "n", "type": {"type": "array", "items": "long"}}]}
    (schema_id,) = registry().register("nested-value", [json.dumps(schema)])
    header = b"\0" + schema_id.to_bytes(4, "big")
    one, sized = header + b"\x04\x02\x04\x00", header + b"\x03\x04\x02\x04\x00"
    assert fastavro.schemaless_reader(io.BytesIO(sized[5:]), schema) == {"n": [1, 2]}
    from pyspark.sql import functions as F

    from spark_jobs.decoding import avro_wire

    decoder = replace(PIPELINE.decoder, schema=json.dumps(schema))
    frame = spark.createDataFrame([(one,), (sized,), (one + b"\x00",)], "value BINARY")
    avro_wire.prepare(decoder, frame)
    parsed = frame.withColumn("parsed", avro_wire.parse(decoder, F.col("value")))
    found = parsed.select(
        avro_wire.message(F.col("parsed"))["n"].alias("n"),
        avro_wire.failure(decoder, F.col("value"), F.col("parsed"))["reason"].alias("reason"),
    ).collect()
    assert [tuple(row) for row in found] == [([1, 2], None), ([1, 2], None), ([1, 2], "trailing_bytes")]


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def read(spark: Any, written: Any, record: Any, declared: Any, subject: str) -> tuple[Any, Any]:
    """A record of a schema read as the declared one: the message, and the failure as reason and detail."""
    (found,) = read_each(spark, written, [record], declared, subject)
    return found


def read_each(spark: Any, written: Any, records: list[Any], declared: Any, subject: str) -> list[tuple[Any, Any]]:
    """The same of several records of the schema, in their order."""
    (schema_id,) = registry().register(subject, [json.dumps(written)])
    values = [
        value(schema_id, json.dumps(written), each) if isinstance(each, dict) else header(schema_id) + each
        for each in records
    ]
    return read_values(spark, values, declared)


def read_values(spark: Any, values: list[bytes], declared: Any) -> list[tuple[Any, Any]]:
    """The same of values, whose schemas are registered."""
    from pyspark.sql import functions as F

    from spark_jobs.decoding import avro_wire

    decoder = replace(PIPELINE.decoder, schema=json.dumps(declared))
    frame = spark.createDataFrame([*enumerate(values)], "number INT, value BINARY")
    avro_wire.prepare(decoder, frame)
    parsed = frame.withColumn("parsed", avro_wire.parse(decoder, F.col("value")))
    failure = avro_wire.failure(decoder, F.col("value"), F.col("parsed"))
    message = avro_wire.message(F.col("parsed"))
    rows = parsed.select("number", message.alias("message"), failure["reason"], failure["detail"]).collect()
    return [(row[1], (row[2], row[3])) for row in sorted(rows, key=lambda row: row["number"])]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record_of(kind: Any, name: str = "T", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, **more, "fields": [{"name": "v", "type": kind}]}


def fields_of(kinds: dict[str, Any]) -> dict[str, Any]:
    """A record with a field of each type, which is null where a writer does not have it and it may be."""
    fields = [
        {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for name, kind in kinds.items()
    ]
    return {"type": "record", "name": "T", "fields": fields}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
AT = datetime(2026, 11, 20, 5, 30, 1, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(("written", "declared"), [(MILLIS, MICROS), (MICROS, MILLIS)])
def test_time_is_the_written_one_when_it_is_declared_in_another_unit(
    spark: Any, gate: Gate, written: Any, declared: Any
) -> None:
    def shape(unit: Any, name: str) -> Any:
        named = record_of(unit, "In", namespace="a.b")
        fields = [
            {"name": "at", "type": ["null", unit]},
            {"name": "many", "type": {"type": "array", "items": ["null", named]}},
            {"name": "by_key", "type": {"type": "map", "values": "a.b.In"}},
        ]
        return {"type": "record", "name": "T", "fields": fields if name == "written" else fields[::-1]}

    # In the other order of the fields, the type is defined elsewhere.
    reads = shape(declared, "declared")
    reads["fields"][0]["type"]["values"] = record_of(declared, "In", namespace="a.b")
    reads["fields"][1]["type"]["items"] = ["null", "a.b.In"]
    unit = written["logicalType"][-6:]
    sent = {"at": AT, "many": [None, {"v": AT}], "by_key": {"k": {"v": AT}}}
    message, failure = read(spark, shape(written, "written"), sent, reads, f"units-{unit}-value")
    assert failure == (None, None)
    naive = AT.replace(tzinfo=None)
    assert (message.at, message.many[1].v, message.by_key["k"].v) == (naive, naive, naive)


DECIMAL = logical("bytes", "decimal", precision=9, scale=2)

UNLIKE: dict[str, tuple[Any, Any, Any, str]] = {
    "scale": (DECIMAL, {**DECIMAL, "scale": 4}, Decimal("1.25"), "decimal(9, 2), declared as decimal(9, 4)"),
    "digits": (DECIMAL, {**DECIMAL, "precision": 5}, Decimal("1.25"), "decimal(9, 2), declared as decimal(5, 2)"),
    # The bytes of a text's digits are another number.
    "text": ("string", DECIMAL, "1.25", "string, declared as decimal(9, 2)"),
    "number": (DECIMAL, "string", Decimal("1.25"), "decimal(9, 2), declared as string"),
    "date": (logical("int", "date"), MILLIS, AT.date(), "date, declared as timestamp-millis"),
    "local": (logical("long", "local-timestamp-millis"), MILLIS, AT.replace(tzinfo=None),
              "local-timestamp-millis, declared as timestamp-millis"),
    "nanos": (logical("long", "timestamp-nanos"), ["null", MICROS], 7,
              "timestamp-nanos, declared as timestamp-micros"),
}  # fmt: skip


def test_schema_is_unusable_when_a_logical_type_is_not_the_declared_one(spark: Any, gate: Gate) -> None:
    declared = fields_of({case: ["null", *unions(kind)] for case, (_, kind, _, _) in UNLIKE.items()})
    schemas = [json.dumps(fields_of({case: kind})) for case, (kind, _, _, _) in UNLIKE.items()]
    given = registry().register("unlike-value", schemas)
    values = [
        value(schema_id, schema, {case: sent})
        for schema_id, schema, (case, (_, _, sent, _)) in zip(given, schemas, UNLIKE.items(), strict=True)
    ]
    found = read_values(spark, values, declared)
    assert [failure for _, failure in found] == [
        ("unusable_schema", f"its schema cannot be read as the declared one: {case} is {said}")
        for case, (_, _, _, said) in UNLIKE.items()
    ]


def unions(kind: Any) -> list[Any]:
    return [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]


ALIKE: dict[str, tuple[Any, Any, Any, Any]] = {
    "plain": ("long", MILLIS, int(AT.timestamp() * 1000), AT.replace(tzinfo=None)),
    "declared_plain": (MILLIS, "long", AT, int(AT.timestamp() * 1000)),
    "digits": (DECIMAL, {**DECIMAL, "precision": 12}, Decimal("1.25"), Decimal("1.25")),
    "unknown": (logical("long", "of-our-own"), MICROS, int(AT.timestamp() * 1_000_000), AT.replace(tzinfo=None)),
    "invalid": (logical("long", "date"), MICROS, int(AT.timestamp() * 1_000_000), AT.replace(tzinfo=None)),
}


def test_value_is_read_as_declared_when_only_one_schema_names_a_logical_type(spark: Any, gate: Gate) -> None:
    written, declared = (fields_of({case: each[side] for case, each in ALIKE.items()}) for side in (0, 1))
    sent = {case: sent for case, (_, _, sent, _) in ALIKE.items()}
    message, failure = read(spark, written, sent, declared, "alike-value")
    assert failure == (None, None)
    assert {case: message[case] for case in ALIKE} == {case: expected for case, (_, _, _, expected) in ALIKE.items()}


@pytest.mark.parametrize(
    "digits",
    [{"precision": "9"}, {"precision": None}, {"precision": 9, "scale": "2"}, {"precision": 0}, {"precision": True},
     {"precision": 2, "scale": 3}, {"precision": 9, "scale": -1}, {"precision": 9, "scale": None}, {"precision": 9.5}],
)  # fmt: skip
def test_decimal_is_ignored_when_its_digits_are_none(digits: dict[str, Any]) -> None:
    """As by Avro, which takes such a field for bytes."""
    written = json.dumps(record_of({"type": "bytes", "logicalType": "decimal", **digits}))
    declared = json.dumps(record_of(DECIMAL))
    assert in_units_of(written, declared) == declared


TEXT_IN: dict[str, tuple[Any, Any, Any]] = {
    "field": ("string", "string", "M~ller"),
    "optional": (["null", "string"], ["null", "string"], "M~ller"),
    "from_bytes": ("bytes", "string", b"M~ller"),
    "array": (*[{"type": "array", "items": "string"}] * 2, ["a", "M~ller"]),
    "key": (*[{"type": "map", "values": "long"}] * 2, {"M~ller": 1}),
    "value": (*[{"type": "map", "values": ["null", "string"]}] * 2, {"a": None, "b": "M~ller"}),
    "record_in_array": (*[{"type": "array", "items": record_of(["null", "string"], "In")}] * 2, [{"v": "M~ller"}]),
}


def test_record_is_quarantined_when_a_text_is_not_utf8(spark: Any, gate: Gate) -> None:
    """Avro's decoder takes it as it is, and what reads the archive fails or takes two such texts for one."""
    schemas = [{case: each[side] for case, each in TEXT_IN.items()} for side in (0, 1)]
    written, declared = (fields_of(each) for each in schemas)
    empty: dict[str, Any] = {
        "field": "", "optional": None, "from_bytes": b"", "array": [], "key": {}, "value": {}, "record_in_array": [],
    }  # fmt: skip
    texts, sent = ("Müll", "\U0001f600"), []
    for case, (_, _, text) in TEXT_IN.items():
        whole = value(0, json.dumps(written), {**empty, case: text})[5:]
        latin = whole.replace(b"M~ller", b"M\xfcller")
        sent += [*(whole.replace(b"M~ller", each.encode().ljust(6)[:6]) for each in texts), latin, latin + b"\0"]
    found = iter(read_each(spark, written, sent, declared, "text-in-value"))
    for case in TEXT_IN:
        for text, (message, failure) in zip(texts, found, strict=False):
            assert failure == (None, None), case
            assert text.strip() in str(message[case]), case
        (_, of_latin), (_, of_longer) = next(found), next(found)
        assert of_latin == ("not_utf8", f"{case} has a text that is not UTF-8")
        assert of_longer[0] == "trailing_bytes", case


def test_nothing_is_asked_of_texts_when_a_schema_has_none(spark: Any, ids: list[int]) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.decoding import avro_wire

    frame = spark.createDataFrame([(encode(ids[0], 0, POSITION),)], "value BINARY").localCheckpoint()
    avro_wire.prepare(PIPELINE.decoder, frame)
    parsed = frame.withColumn("parsed", avro_wire.parse(PIPELINE.decoder, F.col("value")))
    failed = parsed.select(avro_wire.failure(PIPELINE.decoder, F.col("value"), F.col("parsed")))
    plan = failed._jdf.queryExecution().optimizedPlan().toString()
    assert "from_avro(" in plan
    assert "isValid" not in plan


def test_schema_is_unusable_when_a_type_is_part_of_itself(spark: Any, gate: Gate) -> None:
    """A value nested deeply enough would overflow the stack of Avro's decoder, and end the driver."""
    fields = [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Node"], "default": None}]
    node = {"type": "record", "name": "Node", "namespace": "a", "fields": fields}
    # The number 1 and another level, again and again.
    deep = b"\x02\x02" * 400_000 + b"\x02\x00"
    _, failure = read(spark, node, deep, record_of("long", "Node", namespace="a"), "recursive-value")
    assert failure == ("unusable_schema", "its schema is refused: a.Node is part of itself")


def test_type_is_known_when_its_name_comes_before_it(spark: Any, gate: Gate) -> None:
    """Avro takes such a schema, so its types and units are those of any other."""
    moment = struct.pack("<B", 2) + varint(int(AT.timestamp() * 1000))
    space = {"namespace": "a.b"}
    early = fields_of({"at": ["null", "Later"], "later": ["null", record_of(MILLIS, "Later")]}) | space
    declared = fields_of({"at": ["null", record_of(MICROS, "Later")]}) | space
    message, failure = read(spark, early, moment + b"\0", declared, "early-value")
    assert failure == (None, None)
    assert message.at.v == AT.replace(tzinfo=None)


def varint(number: int) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, "long", number)
    return written.getvalue()


def test_schema_is_unusable_when_its_records_are_not_bounded_by_their_bytes(spark: Any, gate: Gate) -> None:
    """Avro passes over what is not declared value by value: such a record would hold up its stream for ever."""
    endless = fields_of({"v": "long", "more": {"type": "array", "items": "null"}})
    mutual = {"v": "long", "a": ["null", record_of(["null", "B"], "A")], "b": ["null", record_of(["null", "A"], "B")]}
    sent = {
        "items of the array more take no bytes": (endless, varint(7) + varint(2**62) + b"\0"),
        # The number 1 and another level, again and again.
        "A is part of itself": (fields_of(mutual), varint(7) + b"\x02\x02" * 400_000 + b"\0\0"),
    }
    given = registry().register("unbounded-value", [json.dumps(schema) for schema, _ in sent.values()])
    values = [header(each) + record for each, (_, record) in zip(given, sent.values(), strict=True)]
    found = read_values(spark, values, record_of("long"))
    assert [failure for _, failure in found] == [("unusable_schema", f"its schema is refused: {each}") for each in sent]


def test_schema_is_read_at_once_when_its_defaults_hold_each_other_many_times(spark: Any) -> None:
    """To validate them would take longer than the driver lives."""
    from spark_jobs.decoding import avro_wire

    kinds: dict[str, Any] = {"v": "long", "n0": ["null", fields_of({"v": "long"}) | {"name": "N0"}]}
    for level in range(1, 40):
        held = [{"name": f"f{each}", "type": f"N{level - 1}", "default": {}} for each in range(2)]
        kinds[f"n{level}"] = ["null", {"type": "record", "name": f"N{level}", "fields": held}]
    kinds["n0"][1]["fields"][0]["default"] = 0
    assert isinstance(avro_wire._resolvable(json.dumps(fields_of(kinds)), json.dumps(record_of("long"))), str)


def test_row_rules_refuse_a_value_when_number_or_time_is_absurd(spark: Any, ids: list[int]) -> None:
    bad = Vehicles(ids).bad_messages(MOMENT, random.Random(3))
    rows = decoded(spark, [broken for _, broken in bad])
    assert [row["reason"] for row in rows] == [reason for reason, _ in bad]
    assert "NaN" in rows[0]["detail"]


def test_value_passes_when_it_is_a_bound_or_null(spark: Any, ids: list[int]) -> None:
    at = {**POSITION, "latitude": 90.0, "longitude": -180.0, "speed": 0.0}
    beyond = {**POSITION, "latitude": 90.00001}
    assert reasons(spark, [encode(ids[0], 0, each) for each in (at, beyond)]) == [None, "out_of_range"]


def test_schema_is_unusable_when_it_is_of_something_else_or_has_references(
    spark: Any, ids: list[int], gate: Gate
) -> None:
    import httpx

    (other,) = registry().register("other-value", [OTHER])
    refers = json.dumps({"type": "record", "name": "R", "fields": [{"name": "o", "type": "Other"}]})
    reply = httpx.post(
        f"{gate.target}/subjects/refers-value/versions",
        json={"schema": refers, "references": [{"name": "Other", "subject": "other-value", "version": 1}]},
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        timeout=20,
    )
    with_references = int(reply.json()["id"])
    header = (b"\0" + each.to_bytes(4, "big") for each in (other, with_references))
    rows = decoded(spark, [each + b"\x02a" for each in header])
    assert [row["reason"] for row in rows] == ["unusable_schema"] * 2
    assert "cannot be read as the declared one" in rows[0]["detail"]
    assert "refers to other schemas" in rows[1]["detail"]
    asked = [path for path in gate.asked if "other-value" in path and "versions/1" in path]
    assert asked == []


def test_schema_is_refused_before_it_is_read_when_it_is_too_deep() -> None:
    from include.schemas.registry import RegisteredSchema
    from include.schemas.writer_schemas import Unusable, usable

    deep = '{"type":"array","items":' * (2 * MAX_SCHEMA_DEPTH + 1) + '"long"' + "}" * (2 * MAX_SCHEMA_DEPTH + 1)
    assert isinstance(usable(RegisteredSchema(deep)), Unusable)
    assert usable(RegisteredSchema("{}", kind="PROTOBUF")) != "{}"
    assert usable(RegisteredSchema("string")) == '"string"'


def test_registry_is_not_asked_when_the_schema_is_on_disk(spark: Any, ids: list[int], another_process: Gate) -> None:
    decoded(spark, [encode(ids[0], 0, POSITION)])
    writer_schemas.cache_clear()
    another_process.answer = 503
    another_process.asked.clear()
    (row,) = decoded(spark, [encode(ids[0], 0, POSITION)])
    assert row["fate"] == "archived"
    assert another_process.asked == []


def test_nothing_is_quarantined_when_the_registry_is_away(spark: Any, ids: list[int], another_process: Gate) -> None:
    (fresh,) = registry().register("fresh-value", [OTHER.replace("Other", "Fresh")])
    another_process.answer = 503
    with pytest.raises(ServiceUnreachable, match="503"):
        decoded(spark, [b"\0" + fresh.to_bytes(4, "big") + b"\x02a"])
    another_process.answer = 404
    # Not the registry's own 404: something else answers at its address.
    with pytest.raises(ServiceUnreachable):
        decoded(spark, [b"\0" + fresh.to_bytes(4, "big") + b"\x02a"])
    another_process.answer = None
    (row,) = decoded(spark, [b"\0" + fresh.to_bytes(4, "big") + b"\x02a"])
    assert row["reason"] == "unusable_schema"


def test_unknown_id_is_asked_for_again_when_another_process_starts(
    spark: Any, ids: list[int], another_process: Gate
) -> None:
    unknown = b"\0" + (2_100_000_000).to_bytes(4, "big") + b"\x02a"
    assert [reasons(spark, [unknown]) for _ in range(2)] == [["unknown_schema"]] * 2
    assert another_process.asked.count("/schemas/ids/2100000000") == 1
    writer_schemas.cache_clear()
    assert reasons(spark, [unknown]) == ["unknown_schema"]
    assert another_process.asked.count("/schemas/ids/2100000000") == 2


def test_registry_is_not_asked_for_an_id_beyond_those_of_any_registry(
    spark: Any, ids: list[int], another_process: Gate
) -> None:
    # Confluent's answers it with a 404 that is not its own.
    another_process.answer = 404
    assert reasons(spark, [b"\0\xff\xff\xff\xff\x02a"]) == ["unknown_schema"]


def test_records_are_quarantined_when_they_have_more_ids_than_any_registry_gives(
    spark: Any, ids: list[int], another_process: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.schemas.writer_schemas.MOST_UNKNOWN", 3)
    monkeypatch.setattr("spark_jobs.decoding.avro_wire._AT_ONCE", 2)
    (rare,) = registry().register("rare-value", [OTHER.replace("Other", "Rare")])
    bad = [header(1_000_000 + number) + b"a" for number in range(10)]
    # Known ones come first: those of the subject, those of more records, and small ones.
    rows = decoded(spark, [*bad, header(rare) + b"\x02a", encode(ids[0], 0, POSITION)])
    assert [row["reason"] for row in rows] == [*["unknown_schema"] * len(bad), "unusable_schema", None]
    assert "no schema with id 1000009, or was not asked" in rows[9]["detail"]
    assert len([each for each in another_process.asked if each.startswith("/schemas/ids/100000")]) == 3
    # The next batch is decoded by what is resolved.
    assert reasons(spark, [header(2_000_000) + b"a", encode(ids[1], 1, {**POSITION, "accuracy": 4})]) == [
        "unknown_schema",
        None,
    ]


def test_error_names_record_and_reason_when_the_decoder_fails_fast(spark: Any, ids: list[int]) -> None:
    from pyspark.errors import PySparkException

    from spark_jobs.spark.failures import translate

    fast = replace(PIPELINE, decoder=replace(PIPELINE.decoder, mode="FAILFAST"))
    good = encode(ids[0], 0, POSITION)
    assert [row["fate"] for row in decoded(spark, [good, good], fast)] == ["archived"] * 2
    with pytest.raises(PySparkException) as thrown:
        decoded(spark, [good, good[:-1]], fast)
    error = translate(thrown.value)
    assert error is not None
    assert error.exit_code == 2
    assert "gps-0 offset 1: truncated" in str(error)


def test_replay_leaves_in_quarantine_what_it_cannot_decode_when_the_decoder_fails_fast(
    spark: Any, ids: list[int], in_process: Home
) -> None:
    from spark_jobs.quarantine.replay import _land

    values = [good := encode(ids[0], 0, POSITION), good[:-1]]
    rows = [(None, value, "gps", 0, number, MOMENT, 0, []) for number, value in enumerate(values)]
    named = {each: f"kafka_{each}" for each in ("topic", "partition", "offset", "timestamp")}
    path = "quarantine/gps_positions/000000000.parquet"
    spark.createDataFrame(rows, COLUMNS).withColumnsRenamed(named).write.parquet(lake.uri(path))
    keys = [RecordKey("gps", "id", 0, number) for number in range(len(values))]
    tried = [Quarantined(key, "unknown_schema", path, "1") for key in keys]
    fast = replace(PIPELINE, decoder=replace(PIPELINE.decoder, mode="FAILFAST"))
    landed = _land(spark, fast, tried, lake.uri("landing", "gps_positions", "replay"))
    assert (landed.fates, {key: reason for key, (reason, _) in landed.failures.items()}) == (
        {keys[0]: "archived"},
        {keys[1]: "truncated"},
    )


def test_reason_is_the_named_one_when_a_bad_message_is_generated(spark: Any, ids: list[int]) -> None:
    from include.producing.generate import messages

    made = list(messages(PIPELINE, events=600, seed=5, bad_fraction=0.3, start=MOMENT, span=timedelta(minutes=1)))
    small = [(each, reason) for _, _, each, reason in made if len(each or b"") < 100_000]
    found = [row["reason"] or "" for row in decoded(spark, [each for each, _ in small])]
    assert found == [reason for _, reason in small]
    versions = Counter(each[4] for each, reason in small if not reason and each)
    assert set(versions) == set(ids)
