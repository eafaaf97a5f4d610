"""Columns that no table can have, and names of columns that lead nowhere, are refused when they are declared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, cast

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import (
    Archive,
    Avro,
    Between,
    Csv,
    Json,
    KafkaDeserializer,
    KafkaTopic,
    MaxBytes,
    Pipeline,
    Reference,
    Required,
    Rows,
    SafeValue,
    Text,
    UserDefined,
)
from include.pipelines.spec.ddl import check_path
from tests.support.spark_types import (
    NOT_IN_CSV,
    NOT_IN_JSON,
    NOT_STORED,
    OF_TABLES_ALONE,
    OTHERWISE_IN_CSV,
    OTHERWISE_IN_JSON,
    SPARK_HAS,
    SPARK_HAS_NOT,
)

AUCTION = load_pipeline("auction_bids")
NEST = load_pipeline("nest_cameras")
VIEW = NEST.views[0]
COLUMNS = "at TIMESTAMP, place STRUCT<zip: STRING, spot: STRUCT<x: DOUBLE>>, tags MAP<STRING, STRING>, l ARRAY<INT>"


def archive(columns: str = COLUMNS, event_time: str = "at", **declared: Any) -> Archive:
    return Archive(rows="rows", columns=columns, event_time=event_time, **declared)


def viewed(columns: str) -> object:
    return replace(VIEW, columns=f"{VIEW.columns}, {columns}")


TABLES: dict[str, Callable[[str], object]] = {
    "archive": lambda columns: archive(f"at TIMESTAMP, {columns}"),
    "view": viewed,
}
MESSAGES: dict[str, Callable[[str], object]] = {
    "output": lambda columns: Rows("clean", KafkaTopic("clean"), rows="made", columns=columns),
    "json": lambda columns: Json(columns),
    "csv": lambda columns: Csv(columns),
    "function": lambda columns: UserDefined("module:decode", columns),
    "deserializer": lambda columns: KafkaDeserializer(Path("a.jar"), "Decoder", columns),
}


@pytest.mark.parametrize("where", [*TABLES, *MESSAGES])
def test_columns_are_refused_when_their_names_differ_in_case_alone(where: str) -> None:
    with pytest.raises(UsageError, match="has the columns a and A, which are one column to Spark"):
        {**TABLES, **MESSAGES}[where]("a STRING, b INT, A INT")


def test_fields_of_an_avro_record_are_refused_when_their_names_differ_in_case_alone() -> None:
    fields = ", ".join(f'{{"name": "{name}", "type": "int"}}' for name in ("a", "A"))
    with pytest.raises(UsageError, match="the columns a and A"):
        Avro("s", f'{{"type": "record", "name": "r", "fields": [{fields}]}}')


@pytest.mark.parametrize("where", TABLES)
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("p STRUCT<a: INT, A: INT>", "the columns a and A"),
        ("p ARRAY<STRUCT<a: INT, A: INT>>", "the columns a and A"),
        ("p STRUCT<>", "a STRUCT without fields, p"),
        ("p STRUCT<a: STRUCT<>>", "a STRUCT without fields, a"),
        ("p ARRAY<STRUCT<>>", "a STRUCT without fields"),
        ("p MAP<STRING, STRUCT<a: STRUCT<>>>", "a STRUCT without fields, a"),
        (
            "a: INT",
            "the column 'a' of a table is declared with a colon, which stands inside a STRUCT only — write a",
        ),
        (
            "p STRUCT<a: INT, b: DOUBLE not null>",
            "has NOT NULL inside of the column p, which no file keeps — leave it out",
        ),
        ("p INT NOT NULL, q ARRAY<STRUCT<a: DECIMAL(5, 2) NOT NULL>>", "NOT NULL inside of the column q"),
        ("`a.b` INT", "the column 'a.b': a dot leads to a field inside of a column — call it a_b"),
    ],
)
def test_table_is_refused_when_no_file_or_reader_of_it_could_have_a_column(where: str, columns: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        TABLES[where](columns)


TYPED: dict[str, Callable[[str], object]] = {
    "archive": TABLES["archive"],
    "view": lambda columns: replace(VIEW, key=(*VIEW.key, "a"), columns=f"{VIEW.columns}, {columns}"),
    "output": MESSAGES["output"],
    "reference": lambda columns: Reference(Path("a.csv"), columns),
    **{
        name: lambda columns, name=name: replace(NEST, decoder=cast(Any, MESSAGES[name](columns)))  # type: ignore[misc]
        for name in ("json", "csv", "function", "deserializer")
    },
}


REFUSED_IN_JSON = (*NOT_IN_JSON, *OTHERWISE_IN_JSON)
REFUSED = {"archive": NOT_STORED, "json": REFUSED_IN_JSON, "deserializer": REFUSED_IN_JSON, "csv": OTHERWISE_IN_CSV}
TAKEN = [(where, kind) for where in ("archive", "output", *MESSAGES) for kind in SPARK_HAS]


@pytest.mark.parametrize(("where", "kind"), [each for each in TAKEN if each[1] not in REFUSED.get(each[0], ())])
def test_type_is_accepted_when_spark_has_it(where: str, kind: str) -> None:
    if where != "csv":
        assert TYPED[where](f"a {kind}")
    elif not kind.startswith(("ARRAY", "MAP", "STRUCT", "VOID", "GEO")):
        assert TYPED["csv"](f"a {kind}")
        assert TYPED["reference"](f"a {kind}")


@pytest.mark.parametrize("kind", NOT_STORED)
@pytest.mark.parametrize("where", ["archive", "view"])
def test_type_is_refused_when_files_of_it_cannot_be_written_or_compared(where: str, kind: str) -> None:
    with pytest.raises(UsageError, match=r"has the column a? ?.*of the type .*, which cannot be stored and compared"):
        TABLES[where](f"a {kind}")


@pytest.mark.parametrize("kind", SPARK_HAS_NOT)
@pytest.mark.parametrize("where", TYPED)
def test_type_is_refused_when_spark_does_not_have_it(where: str, kind: str) -> None:
    with pytest.raises(
        UsageError, match=r"has the column a.* of the type .*, which Spark does not have — write STRING,"
    ):
        TYPED[where](f"a {kind}")


def test_type_is_named_with_its_place_when_it_is_inside_of_a_column() -> None:
    with pytest.raises(UsageError, match=r"the archive has the column p\.q\.n of the type STRNG, which Spark"):
        archive("at TIMESTAMP, p STRUCT<q: ARRAY<STRUCT<n: STRNG>>>")


@pytest.mark.parametrize("kind", OF_TABLES_ALONE)
@pytest.mark.parametrize("where", TYPED)
def test_type_is_refused_when_spark_has_it_in_tables_alone(where: str, kind: str) -> None:
    """Streams ended when they began, in Spark's words or with a remedy that no function can follow."""
    with pytest.raises(UsageError, match=r"column a.* of the type .*, which Spark knows in tables alone: .*STRING"):
        TYPED[where](f"a {kind}")


@pytest.mark.parametrize("kind", REFUSED_IN_JSON)
@pytest.mark.parametrize("where", ["json", "deserializer"])
def test_schema_is_refused_when_spark_does_not_read_it_from_json(where: str, kind: str) -> None:
    said = r"the schema of a message has the (column|map) a\S* .* — declare (it|the key) as (STRING|SMALLINT, in)"
    with pytest.raises(UsageError, match=said):
        TYPED[where](f"a {kind}")
    assert TYPED["function"](f"a {kind}")


@pytest.mark.parametrize("what", ["csv", "reference"])
def test_column_is_refused_when_spark_reads_some_texts_of_a_line_as_null(what: str) -> None:
    with pytest.raises(
        UsageError, match=r"the column b of .* is INTERVAL: Spark takes .* — declare it as STRING or with"
    ):
        TYPED[what]("a INT, b INTERVAL")


@pytest.mark.parametrize("kind", NOT_IN_CSV)
@pytest.mark.parametrize("what", ["Csv", "a reference"])
def test_column_is_refused_when_a_line_cannot_hold_it(what: str, kind: str) -> None:
    said = f"the column b of {what} is {re.split('[<(]', kind)[0]}, which a line cannot hold — declare it as STRING"
    with pytest.raises(UsageError, match=re.escape(said)):
        TYPED["csv" if what == "Csv" else "reference"](f"a DECIMAL(5,2), b {kind}")


@pytest.mark.parametrize("separator", ["", "\\"])
def test_csv_is_refused_when_its_separator_separates_nothing(separator: str) -> None:
    with pytest.raises(UsageError, match="separates no columns of CSV — write separator="):
        replace(NEST, decoder=Csv("a STRING, b TIMESTAMP", separator))
    assert replace(NEST, decoder=Csv("a STRING, b TIMESTAMP", "\t")).decoder.separator == "\t"  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [0, -5, "1MiB"])
def test_limit_of_bytes_is_refused_when_it_is_no_number_from_1_on(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"max_bytes of Text is .* — write a whole number from 1 on"):
        replace(NEST, decoder=Text(max_bytes=limit))
    with pytest.raises(
        UsageError, match=r"the limit of MaxBytes for place\.zip is .* — write a whole number from 1 on"
    ):
        archive(rules=(MaxBytes("place.zip", limit),))


NO_NUMBERS = ("TIMESTAMP", "timestamp without time zone", "DATE", "BOOLEAN", "ARRAY<INT>", "STRING", "BINARY", "VOID")


@pytest.mark.parametrize("kind", [*NO_NUMBERS, "STRING COLLATE UNICODE", "INTERVAL DAY TO SECOND"])
def test_bounds_are_refused_when_their_column_is_not_compared_with_numbers(kind: str) -> None:
    said = f"the rule Between compares n with numbers, and it is {kind.upper().partition('<')[0]} — name a number"
    with pytest.raises(UsageError, match=re.escape(said)):
        archive(f"at TIMESTAMP, n {kind}", rules=(Between("n", 0, 1),))
    for number in ("INT", "DECIMAL(5,2)", "DOUBLE", "tinyint", "DEC", "REAL NOT NULL"):
        assert archive(f"at TIMESTAMP, n {number}", rules=(Between("n", 0, 1),)).rules


@pytest.mark.parametrize("high", [-90, nan])
def test_bounds_are_refused_when_no_number_lies_between_them(high: float) -> None:
    with pytest.raises(UsageError, match=f"the rule Between for n has the bounds 90 and {high}"):
        archive("at TIMESTAMP, n INT", rules=(Between("n", 90, high),))


@pytest.mark.parametrize("kind", ["ARRAY<STRING>", "MAP<STRING, INT>", "STRUCT<x: INT>", "GEOMETRY(4326)"])
def test_length_is_refused_when_its_column_has_none_in_bytes(kind: str) -> None:
    said = f"the rule MaxBytes measures n, and it is {re.split('[<(]', kind)[0]}"
    columns = f"at TIMESTAMP, n {kind}"
    if kind.startswith("MAP"):
        # A path into a map leads to its values.
        columns, said = f"at TIMESTAMP, m MAP<STRING, {kind}>", said.replace("measures n", "measures m.n")
    with pytest.raises(UsageError, match=re.escape(said)):
        archive(columns, rules=(MaxBytes("m.n" if "m MAP" in columns else "n", 5),))
    assert archive("at TIMESTAMP, n STRING COLLATE UNICODE", rules=(MaxBytes("n", 5),)).rules


@pytest.mark.parametrize("kind", ["TIMESTAMP", "timestamp_ntz", "ARRAY<INT>", "STRUCT<x: INT>", "INTERVAL HOUR"])
def test_folders_are_refused_when_no_value_of_their_column_may_be_the_name_of_one(kind: str) -> None:
    said = f"n is {re.split('[<(]', kind.upper())[0]}, and no value of it may be the name of a folder — let the rows"
    for declared in ({"partition_by": {"by_n": "n"}}, {"rules": (SafeValue("n"),)}):
        with pytest.raises(UsageError, match=re.escape(said)):
            archive(f"at TIMESTAMP, n {kind}", **declared)
        for named in ("STRING COLLATE UNICODE", "INT", "DATE", "BOOLEAN"):
            assert archive(f"at TIMESTAMP, n {named}", **declared)


@pytest.mark.parametrize("kind", ["BIGINT", "STRING", "DATE", "TIMESTAMP_NTZ"])
def test_event_time_is_refused_when_a_stream_cannot_forget_windows_by_it(kind: str) -> None:
    assert archive(f"t {kind}", "t").event_time_kind == kind
    said = f"event_time t is {kind}, and the view hourly_counts has windows of it — declare it as TIMESTAMP"
    with pytest.raises(UsageError, match=re.escape(said)):
        timed(f"t {kind}", "t", "update")


@pytest.mark.parametrize(
    "kind", ["BOOLEAN", "ARRAY<TIMESTAMP>", "MAP<STRING, TIMESTAMP>", "INTERVAL DAY TO SECOND", "VOID"]
)
def test_event_time_is_refused_when_it_is_no_time(kind: str) -> None:
    with pytest.raises(UsageError, match=f"event_time t is {kind.partition('<')[0]}, which is no time — declare it as"):
        archive(f"t {kind}", "t")


def test_event_time_is_accepted_when_its_view_can_use_it() -> None:
    assert timed("p STRUCT<t: timestamp_ltz COMMENT 'not null'>", "p.t", "update").views
    assert timed("t DATE", "t", "complete").views
    with pytest.raises(UsageError, match="event_time t is BIGINT"):
        timed("t BIGINT", "t", "complete")
    assert replace(NEST, views=(), reports=(), archive=archive("t BIGINT", "t")).archive.event_time_kind == "BIGINT"


def timed(columns: str, event_time: str, mode: Any) -> Pipeline:
    """A pipeline whose view has windows of this event time."""
    views = (replace(VIEW, mode=mode),)
    return replace(NEST, views=views, reports=(), archive=archive(columns, event_time))


NOWHERE: list[tuple[Callable[[], object], str]] = [
    (
        lambda: archive(event_time="att"),
        "event_time names 'att', and there is no 'att' in the columns — one of: at",
    ),
    (
        lambda: archive(event_time="place.at"),
        "event_time names 'place.at', and there is no 'at' in place — one",
    ),
    (lambda: archive(rules=(Required("zz"),)), "the rule Required names 'zz'"),
    (lambda: archive(rules=(Required("tags.a"),)), "the rule Required names 'tags.a', and there is no 'a' in tags"),
    (lambda: archive(rules=(MaxBytes("place.spot.y", 5),)), "the rule MaxBytes names 'place.spot.y'"),
    (lambda: archive(rules=(Between("l.x", 0, 1),)), "the rule Between names 'l.x', and there is no 'x' in l"),
    (lambda: archive(partition_by={"by_z": "zz"}), "partition column 'by_z' names 'zz'"),
    (
        lambda: replace(AUCTION, flags=replace(AUCTION.flags, columns=("zz",))),  # type: ignore[type-var]
        "columns of the flags names 'zz'",
    ),
]


@pytest.mark.parametrize(("declare", "said"), NOWHERE, ids=[said for _, said in NOWHERE])
def test_path_is_refused_when_it_leads_to_nothing_that_is_declared(declare: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        declare()


@pytest.mark.parametrize("where", MESSAGES)
def test_message_is_accepted_when_its_columns_are_declared_with_colons(where: str) -> None:
    assert MESSAGES[where]("a: STRING, b: STRUCT<c: INT>")


@pytest.mark.parametrize("where", MESSAGES)
def test_message_is_accepted_when_a_field_of_its_structs_is_declared_with_not_null(where: str) -> None:
    assert MESSAGES[where]("a STRUCT<b: STRUCT<c STRING NOT NULL COMMENT 'of, it'>>")


def test_schema_of_a_message_is_accepted_when_its_comments_are_in_quotes_of_either_kind() -> None:
    assert Json("a STRING COMMENT 'of, one', b INT COMMENT \"it's, another\"").max_bytes


def test_path_is_accepted_when_it_leads_into_structs_and_maps() -> None:
    rules = (Required("place.spot.x"), MaxBytes("tags.a", 5), Between("place.spot.x", 0, 1), Required("l"))
    assert archive(rules=rules, partition_by={"by_zip": "place.zip"}).rules == rules
    assert AUCTION.flags is not None
    carried = ("bid_id", "kafka_offset", "event_time")
    assert replace(AUCTION, flags=replace(AUCTION.flags, columns=carried)).flags is not None


def test_path_leads_into_elements_only_where_a_column_of_each_is_wanted() -> None:
    columns = "items ARRAY<STRUCT<price: DOUBLE>>"
    assert check_path("items.price", columns, "columns of the flags", into_arrays=True).kind == "DOUBLE"
    with pytest.raises(UsageError, match="there is no 'price' in items"):
        check_path("items.price", columns, "event_time")


@pytest.mark.parametrize("sign", [" ", ",", ";", "{", ")", "=", "\n"])
def test_column_is_refused_when_a_delta_table_cannot_have_its_name(sign: str) -> None:
    for columns in (f"at TIMESTAMP, `a{sign}b` STRING", f"at TIMESTAMP, l ARRAY<STRUCT<`a{sign}b`: INT>>"):
        assert archive(columns).columns == columns
        with pytest.raises(UsageError, match="does not fit a Delta table: a name has no space"):
            archive(columns, delta=True)
    assert archive("at TIMESTAMP, `a-b/c%` STRING", delta=True).delta
