"""What a JSON message holds beyond its schema is kept as it was sent, wherever it stands, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Avro, Csv, Json, Pipeline, Text, UserDefined
from spark_jobs.decoding import unknown_fields
from spark_jobs.decoding.unknown_fields import MOST_PATHS, Shape, left_of, paths_of, shape_of
from tests.support.corpora import JSON_CASES, NAUGHTY

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
KAFKA_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
SCHEMA = "id INT, to STRUCT<x: DOUBLE>, by_key MAP<STRING, STRUCT<a: INT>>, many ARRAY<STRUCT<a: INT>>, any STRING"
KINDS = (
    StructType()
    .add("id", IntegerType())
    .add("to", StructType().add("x", IntegerType()))
    .add("by_key", MapType(StringType(), StructType().add("a", IntegerType())))
    .add("many", ArrayType(StructType().add("a", IntegerType())))
    .add("any", StringType())
)
SHAPE = shape_of(KINDS) or Shape()

CASES = [
    ("{}", None),
    (' { "id" : 7 } ', None),
    ('{"id":7,"any":{"deep":[1]},"to":null,"by_key":{"k":{"a":1}},"many":[{"a":1},null]}', None),
    # Numbers as they were sent: a parser would make Infinity, 1 and 12345678901234567000 of them.
    ('{"new":1E400}', '{"new":1E400}'),
    ('{"new":1.0}', '{"new":1.0}'),
    ('{"new":-0.0}', '{"new":-0.0}'),
    ('{"new":12345678901234567890.10}', '{"new":12345678901234567890.10}'),
    # Null was sent, and is not the same as missing.
    ('{"new":null}', '{"new":null}'),
    ('{"new":""}', '{"new":""}'),
    # In the order of the message, as often as it was sent.
    ('{"z":1,"a":2,"z":3}', '{"z":1,"a":2,"z":3}'),
    ('{"id":1,"id":2,"z":1}', '{"z":1}'),
    # White space inside a value is part of it, between members it is not.
    ('{ "new" : [ 1,\t2 ] , "other" : { } }', '{"new":[ 1,\t2 ],"other":{ }}'),
    # Escapes stay; a name is known by what it says.
    ('{"\\u0069d":7,"n\\u0065w":"\\ud83d\\ude00\\/"}', '{"n\\u0065w":"\\ud83d\\ude00\\/"}'),
    ('{"\\ud800":"\\ud800"}', '{"\\ud800":"\\ud800"}'),
    ('{"ID":1,"Id":2,"ıd":3}', '{"ID":1,"Id":2,"ıd":3}'),
    ('{"a.b":1,"":2," ":3}', '{"a.b":1,"":2," ":3}'),
    ('{"q":"}\\"{]["}', '{"q":"}\\"{]["}'),
    # Inside known values: by the name of a field, the key of a map, or the place in an array.
    ('{"to":{"x":1,"new":{"x":1}},"id":1}', '{"to":{"new":{"x":1}}}'),
    ('{"by_key":{"k 1":{"a":1},"k\\u0032":{"b":[]}}}', '{"by_key":{"k\\u0032":{"b":[]}}}'),
    ('{"many":[{"a":1},{"b":2},null,{}]}', '{"many":[null,{"b":2},null,null]}'),
]


@pytest.mark.parametrize(("sent", "left"), CASES)
def test_fields_are_kept_as_sent_when_the_schema_does_not_name_them(sent: str, left: str | None) -> None:
    assert left_of(sent.encode(), SHAPE) == left


def test_paths_name_fields_when_keys_places_and_names_are_odd() -> None:
    left = (
        '{"new":{"a":1},"to":{"y":1,"y":2},"by_key":{"k":{"b":1},"l":{"b":2}},"many":[null,{"c":1}],"a.b":1,"\\n":2,"'
        + "x" * 300
        + '":3}'
    )
    long = '"' + "x" * 99 + '…"'
    assert paths_of(left, SHAPE) == ["new", "to.y", "by_key.*.b", "many[].c", '"a.b"', '"\\n"', long]


def test_number_of_paths_is_limited_when_a_message_has_many() -> None:
    left = json.dumps({f"new_{n}": n for n in range(10_000)})
    assert paths_of(left, SHAPE) == [f"new_{n}" for n in range(MOST_PATHS)]


def test_nothing_is_lost_when_a_text_cannot_be_cut() -> None:
    assert left_of(b' {"id": 7, oops} ', SHAPE) == '{"id": 7, oops}'
    assert paths_of("oops", SHAPE) == []


def test_values_are_kept_when_they_are_deep_or_large() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert left_of(f'{{"id":1,"new":{deep}}}'.encode(), SHAPE) == f'{{"new":{deep}}}'
    digits = "9" * 100_000
    assert left_of(f'{{"id":{digits},"new":{digits}}}'.encode(), SHAPE) == f'{{"new":{digits}}}'
    assert left_of(f'{{"id":{digits}}}'.encode(), SHAPE) is None


def test_strings_are_kept_as_names_and_values_when_they_are_naughty() -> None:
    for text in NAUGHTY:
        for ascii_only in (True, False):
            quoted = json.dumps(text, ensure_ascii=ascii_only)
            member = f"{quoted}:{quoted}"
            assert left_of(f'{{"id":1,{member},"to":{{{member}}}}}'.encode(), SHAPE) == (
                f'{{{member},"to":{{{member}}}}}'
            )


NAMES = st.sampled_from(["id", "to", "by_key", "many", "any", "a", "x", "new", 'q"', "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


NOTHING = object()


def pruned(value: Any, shape: Shape | None) -> Any:
    """Return the unknown fields as a parser finds them."""
    if shape and isinstance(value, dict) and shape.fields is not None:
        fields = shape.fields
        left = {name: pruned(each, fields[name]) if name in fields else each for name, each in value.items()}
    elif shape and isinstance(value, dict) and shape.values:
        left = {name: pruned(each, shape.values) for name, each in value.items()}
    elif shape and isinstance(value, list) and shape.elements:
        found = [pruned(each, shape.elements) for each in value]
        return [None if each is NOTHING else each for each in found] if set(map(id, found)) - {id(NOTHING)} else NOTHING
    else:
        return NOTHING
    return {name: each for name, each in left.items() if each is not NOTHING} or NOTHING


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans())
@settings(deadline=None, max_examples=300)
def test_result_equals_a_parser_s_when_a_message_is_cut(message: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(message, indent=indent, ensure_ascii=ascii_only)
    left = left_of(text.encode(), SHAPE)
    assert (NOTHING if left is None else json.loads(left)) == pruned(message, SHAPE)
    # The quick check and the cut agree.
    assert unknown_fields._left(text, 0, SHAPE) == left


REFUSED = {
    "text": lambda: Text(unknown="keep"),
    "CSV": lambda: Csv("a INT", unknown="keep"),
    "a function": lambda: UserDefined("os.path:join", "a INT", unknown="keep"),
    "Avro": lambda: Avro("s", '{"type": "record", "name": "r", "fields": []}', unknown="keep"),
    "a field of that name": lambda: Json("a INT, `Unknown_Fields` STRING", unknown="keep"),
    "another word": lambda: Json("a INT", unknown="all"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", REFUSED)
def test_keeping_is_refused_when_it_cannot_be(kind: str) -> None:
    with pytest.raises(UsageError, match="unknown"):
        REFUSED[kind]()


def test_keeping_is_refused_when_the_archive_has_a_column_of_that_name() -> None:
    pipeline = keeping("id INT", "whole")
    with pytest.raises(UsageError, match="unknown_fields"):
        replace(pipeline, archive=replace(pipeline.archive, columns="id INT, UNKNOWN_FIELDS STRING"))
    with pytest.raises(UsageError, match="unknown_fields"):
        replace(pipeline, archive=replace(pipeline.archive, partition_by={"unknown_fields": "id"}))


def keeping(schema: str, rows: str, decoder: Json | None = None) -> Pipeline:
    """A pipeline whose archive has the columns of its messages."""
    archive = Archive(rows=rows, columns=schema, event_time="id")
    decoder = decoder or Json(schema, unknown="keep")
    nest = load_pipeline("nest_cameras")
    return replace(nest, decoder=decoder, archive=archive, views=(), reports=(), references={})


def whole(message: Column) -> Column:
    return message


def each_of_many(message: Column) -> Column:
    return message["many"]


@pytest.fixture
def decode(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Pipeline, Sequence[bytes]], Any]:
    """Decodes values; the offset of each is its place in the list."""
    from spark_jobs.decoding import records

    monkeypatch.setattr(records, "transform", lambda pipeline, name: globals()[name])
    # What is tested has no time.
    monkeypatch.setattr(records, "field_at", lambda row, path: F.lit(NOW))

    def decoded(pipeline: Pipeline, values: Sequence[bytes]) -> Any:
        rows = [(None, value, "t", 0, offset, NOW, []) for offset, value in enumerate(values)]
        return records.decode(pipeline, spark.createDataFrame(rows, KAFKA_DDL))

    return decoded


@pytest.mark.spark
def test_plan_and_columns_are_those_of_before_when_nothing_is_kept(decode: Any) -> None:
    values = [sent.encode() for sent, _ in CASES]
    plain = decode(keeping(SCHEMA, "whole", Json(SCHEMA)), values)
    kept = decode(keeping(SCHEMA, "whole"), values)
    assert [name for name in kept.columns if name != "unknown_fields"] == plain.columns
    assert "Python" not in plan_of(plain)
    assert "ArrowEvalPython" in plan_of(kept)
    # Queries that do not read the column do not pay for it: the real-time query of flags could not run a Python worker.
    rest = kept.drop("unknown_fields")
    assert "Python" not in plan_of(rest)
    assert sorted(map(str, rest.collect())) == sorted(map(str, plain.collect()))


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan())


@pytest.mark.spark
def test_json_has_the_same_fate_and_is_kept_as_sent_when_it_is_hostile(decode: Any) -> None:
    cases = [path.read_bytes() for path in JSON_CASES]
    inside = [b'{"id": 7, "new" : ' + case + b"}" for case in cases]
    beside = [b'{"id": 7, "to": {"' + str(n).encode() + b'":' + case + b"}}" for n, case in enumerate(cases)]
    values = [*cases, *inside, *beside, *(sent.encode() for sent, _ in CASES)]
    plain = {row.kafka_offset: row for row in decode(keeping(SCHEMA, "whole", Json(SCHEMA)), values).collect()}
    kept = {row.kafka_offset: row for row in decode(keeping(SCHEMA, "whole"), values).collect()}
    assert {at: (row.fate, row.reason) for at, row in kept.items()} == {
        at: (row.fate, row.reason) for at, row in plain.items()
    }
    archived = {at for at, row in kept.items() if row.fate == "archived"}
    assert not [at for at, row in kept.items() if at not in archived and row.unknown_fields is not None]
    found = {at - len(cases): kept[at].unknown_fields for at in archived if 0 <= at - len(cases) < len(cases)}
    assert found == {n: '{"new":' + cases[n].decode().strip(" \t\r\n") + "}" for n in found}
    accepted = {n for n, path in enumerate(JSON_CASES) if path.name.startswith("y_")}
    rejected = {n for n, path in enumerate(JSON_CASES) if path.name.startswith("n_")}
    # Some that are rejected alone are valid as members of an object: `1,"a":2`.
    assert accepted <= found.keys()
    assert len(rejected & found.keys()) < 5
    told = {sent: kept[at] for at, (sent, _) in enumerate(CASES, start=3 * len(cases))}
    assert {sent: row.unknown_fields for sent, row in told.items()} == dict(CASES)
    # What is known is what the parser reads: a name by its text, in this case.
    assert [told[sent].id for sent in told if "ID" in sent or "0069" in sent] == [7, None]


@pytest.mark.spark
def test_first_row_alone_holds_it_when_a_message_has_many_rows(decode: Any) -> None:
    pipeline = keeping(SCHEMA, "each_of_many")
    pipeline = replace(pipeline, archive=replace(pipeline.archive, columns="a INT", event_time="a"))
    values = [b'{"many":[{"a":1},{"a":2,"b":3}],"new":4}', b'{"many":[],"new":4}', b'{"many":[{"a":1}]}']
    found = [(r.fate, r.kafka_element, r.unknown_fields) for r in decode(pipeline, values).collect()]
    assert sorted(found, key=str) == [
        ("archived", 0, '{"many":[null,{"b":3}],"new":4}'),
        ("archived", 0, None),
        ("archived", 1, None),
        ("empty", 0, None),
    ]


@pytest.mark.spark
def test_drift_names_first_record_and_share_of_a_path_when_fields_are_unknown(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import drift

    pipeline = keeping(SCHEMA, "whole")
    values = [b'{"id":1}', b'{"new":1,"to":{"y":1}}', b'{"new":2}', b"{", b'{"other":1}']
    found = drift.find_drift(pipeline, decode(pipeline, values), 4)
    assert (found["records"], found["share"], found["further_paths"]) == (3, 0.75, 0)
    first = {"topic": "t", "partition": 0}
    assert found["paths"] == [
        {"path": "new", "records": 2, "share": 0.5, "first": {**first, "offset": 1}},
        {"path": "other", "records": 1, "share": 0.25, "first": {**first, "offset": 4}},
        {"path": "to.y", "records": 1, "share": 0.25, "first": {**first, "offset": 1}},
    ]
    monkeypatch.setattr(drift, "MOST", 1)
    bounded = drift.find_drift(pipeline, decode(pipeline, values), 4)
    assert (len(bounded["paths"]), bounded["further_paths"]) == (1, 2)
    section = drift.drift_section(bounded)
    assert section["rows"] == [["new", 2, "50.0 %", "t", 0, 1]]
    assert section["truncated"] == 2
    assert drift.find_drift(keeping(SCHEMA, "whole", Json(SCHEMA)), decode(pipeline, values), 4) == {}
