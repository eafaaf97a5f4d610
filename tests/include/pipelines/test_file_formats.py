"""What a declaration may say of its files' format: refused at once, naming the column, where values would change."""

from __future__ import annotations

from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Fits, Required
from include.pipelines.spec.ddl import Field, fields_of
from include.pipelines.spec.file_formats import FILE_FORMATS, format_of
from tests.support.shipped import SHIPPED

EVERYTHING = """
    a STRING NOT NULL COMMENT 'of a, b', `odd name` STRUCT<x: MAP<STRING, ARRAY<BINARY>>, y DECIMAL(10, 2)>,
    at TIMESTAMP_NTZ
"""


def archive(file_format: Any, columns: str, **more: Any) -> Archive:
    return Archive(rows="rows", columns=columns, event_time="at", file_format=file_format, **more)


def test_nested_columns_are_read_when_a_type_has_them() -> None:
    value = Field("", "ARRAY", (Field("", "BINARY"),))
    x = Field("x", "MAP", (Field("", "STRING"), value))
    odd = Field("odd name", "STRUCT", (x, Field("y", "DECIMAL", arguments=(10, 2))))
    assert fields_of(EVERYTHING) == (Field("a", "STRING"), odd, Field("at", "TIMESTAMP_NTZ"))


def test_columns_are_read_when_a_shipped_pipeline_declares_them() -> None:
    for pipeline in map(load_pipeline, SHIPPED):
        assert len(fields_of(pipeline.archive.columns)) > 2
        assert pipeline.archive.file_format == "parquet"


@pytest.mark.parametrize("text", ["", "a", "a STRING,", "a STRUCT<b: INT", "a MAP<STRING>", "a INT) b", "a-b INT", "1"])
def test_text_is_refused_when_it_is_not_a_list_of_columns(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of columns"):
        archive("orc", text)


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_format_is_accepted_when_it_holds_every_column(file_format: str) -> None:
    assert archive(file_format, EVERYTHING).file_format == file_format


@pytest.mark.parametrize(
    ("file_format", "columns", "refused"),
    [
        ("xml", "a STRING", "unknown file format 'xml' — one of: parquet, orc, avro, csv, json"),
        ("csv", "a STRING, b BINARY", "column 'b' .* csv: BINARY .* make it text .* another file_format"),
        ("csv", "a ARRAY<STRING>", "column 'a' .* ARRAY"),
        ("csv", "a STRUCT<b: INT>", "column 'a' .* STRUCT"),
        ("csv", "a MAP<STRING, INT>", "column 'a' .* MAP"),
        ("json", "a STRUCT<b: ARRAY<VOID>>", "column 'a.b' .* VOID .* choose another"),
        ("json", "a MAP<INT, STRING>", "column 'a' .* keys of maps"),
        ("avro", "a STRUCT<b: MAP<STRING, STRING>>", "column 'a.b' .* MAP .* map_entries"),
        ("orc", "a STRING, b ARRAY<MAP<STRING, INT>>", "column 'b' .* MAP .* map_entries"),
        ("avro", "a INT, b SMALLINT", "column 'b' .* SMALLINT"),
        ("avro", "a STRUCT<`odd name`: INT>", "column 'a.odd name' .* letters"),
        ("orc", "a INTERVAL DAY TO SECOND", "column 'a' .* INTERVAL DAY TO SECOND"),
        ("orc", "a STRING COLLATE UTF8_LCASE", "column 'a' .* COLLATE"),
    ],
)
def test_column_is_refused_by_name_when_a_format_does_not_hold_it(file_format: str, columns: str, refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        archive(file_format, columns)


def test_rows_must_fit_when_a_format_changes_some_values() -> None:
    asked = {each: archive(each, "at STRING", rules=(Required("at"),)).all_rules[1:] for each in FILE_FORMATS}
    assert asked == {
        "parquet": (), "orc": (Fits("orc"),), "avro": (), "csv": (Fits("csv"),), "json": (Fits("json"),),
    }  # fmt: skip


def test_format_is_recognised_when_a_file_has_its_name() -> None:
    names = {f"part-0-c000.{ending}" for ending in ("zstd.parquet", "zstd.orc", "avro", "csv.gz", "json.gz")}
    assert {format_of(name) for name in names} == set(FILE_FORMATS)
