"""What a declaration may say of its files' format: refused at once, naming the column, where values would change."""

from __future__ import annotations

from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import all_pipelines
from include.pipelines.spec import Archive, Fits, Required
from include.pipelines.spec.ddl import Field, fields_of
from include.pipelines.spec.file_formats import FILE_FORMATS, format_of

EVERYTHING = """
    a STRING NOT NULL COMMENT 'of a, b', `odd name` STRUCT<x: MAP<STRING, ARRAY<BINARY>>, y DECIMAL(10, 2)>,
    at TIMESTAMP_NTZ
"""


def archive(file_format: Any, columns: str, **more: Any) -> Archive:
    return Archive(rows="rows", columns=columns, event_time="at", file_format=file_format, **more)


def test_columns_are_read_down_into_nested_ones() -> None:
    value = Field("", "ARRAY", (Field("", "BINARY"),))
    x = Field("x", "MAP", (Field("", "STRING"), value))
    odd = Field("odd name", "STRUCT", (x, Field("y", "DECIMAL", arguments=(10, 2))))
    assert fields_of(EVERYTHING) == (Field("a", "STRING"), odd, Field("at", "TIMESTAMP_NTZ"))


def test_columns_of_all_pipelines_are_read() -> None:
    for pipeline in all_pipelines():
        assert len(fields_of(pipeline.archive.columns)) > 2
        assert pipeline.archive.file_format == "parquet"


@pytest.mark.parametrize("text", ["", "a", "a STRING,", "a STRUCT<b: INT", "a MAP<STRING>", "a INT) b", "a-b INT", "1"])
def test_text_that_is_no_list_of_columns_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of columns"):
        archive("orc", text)


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json"])
def test_format_that_holds_everything_is_accepted(file_format: str) -> None:
    assert archive(file_format, EVERYTHING).file_format == file_format


@pytest.mark.parametrize(
    ("file_format", "columns", "refused"),
    [
        ("xml", "a STRING", "unknown file format 'xml' — one of: parquet, orc, avro, csv, json"),
        ("csv", "a STRING, b BINARY", "column 'b' .* csv: BINARY .* make it text .* another file_format"),
        ("csv", "a ARRAY<STRING>", "column 'a' .* ARRAY"),
        ("csv", "a STRUCT<b: INT>", "column 'a' .* STRUCT"),
        ("csv", "a MAP<STRING, INT>", "column 'a' .* MAP"),
        ("json", "a STRUCT<b: ARRAY<VARIANT>>", "column 'a.b' .* VARIANT .* choose another"),
        ("json", "a MAP<INT, STRING>", "column 'a' .* keys of maps"),
        ("avro", "a STRUCT<b: MAP<TIMESTAMP, STRING>>", "column 'a.b' .* keys of maps"),
        ("avro", "a INT, b SMALLINT", "column 'b' .* SMALLINT"),
        ("avro", "a STRUCT<`odd name`: INT>", "column 'a.odd name' .* letters"),
        ("orc", "a INTERVAL DAY TO SECOND", "column 'a' .* INTERVAL DAY TO SECOND"),
        ("orc", "a STRING COLLATE UTF8_LCASE", "column 'a' .* COLLATE"),
    ],
)
def test_column_that_a_format_does_not_hold_is_refused_by_name(file_format: str, columns: str, refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        archive(file_format, columns)


def test_format_that_changes_some_values_asks_that_rows_fit() -> None:
    asked = {each: archive(each, "a STRING", rules=(Required("a"),)).all_rules[1:] for each in FILE_FORMATS}
    assert asked == {
        "parquet": (), "orc": (Fits("orc"),), "avro": (), "csv": (Fits("csv"),), "json": (Fits("json"),),
    }  # fmt: skip


def test_file_tells_its_format_by_its_name() -> None:
    names = {f"part-0-c000.{ending}" for ending in ("zstd.parquet", "zstd.orc", "avro", "csv.gz", "json.gz")}
    assert {format_of(name) for name in names} == set(FILE_FORMATS)
