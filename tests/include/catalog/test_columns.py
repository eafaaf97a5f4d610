"""Columns in the catalog against declared ones: added and widened ones are followed, anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from include.catalog.columns import Columns, changes, check_columns, columns_of_json, declared_columns, type_name
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.pipelines.spec.ddl import fields_of
from tests.support.shipped import all_pipelines
from tests.support.spark_types import SPARK_HAS

PIPELINE = load_pipeline("nest_cameras")


def columns(ddl: str, *partition_by: str) -> Columns:
    return Columns(fields_of(ddl), partition_by or ("interval",))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("a INT", "a INT, b STRING", "b string is new"),
        ("a INT", "b STRING, a INT", "b string is new"),
        ("a INT", "a BIGINT", "a is int in the catalog, declared is bigint"),
        ("a BYTE", "a SMALLINT", "a is tinyint in the catalog, declared is smallint"),
        ("a FLOAT", "a DOUBLE", "a is float in the catalog, declared is double"),
        ("a DECIMAL(5, 2)", "a DECIMAL(7, 4)", "a is decimal(5,2) in the catalog, declared is decimal(7,4)"),
        ("a DECIMAL", "a DECIMAL(38, 9)", "a is decimal(10,0) in the catalog, declared is decimal(38,9)"),
        ("a STRUCT<x: INT>", "a STRUCT<x: LONG>", "a.x is int in the catalog, declared is bigint"),
        ("a STRUCT<x: INT>", "a STRUCT<x: INT, y: INT>", "a.y int is new"),
        ("a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<x: INT, y: DATE>>", "a.element.y date is new"),
        ("a MAP<STRING, FLOAT>", "a MAP<STRING, DOUBLE>", "a.value is float in the catalog, declared is double"),
        ("a INT, b INT", "b INT, a INT", "the columns stand in another order"),
        ("a INT NOT NULL COMMENT 'x'", "a INTEGER", ""),
        ("a VARCHAR(9), b TIMESTAMP", "a STRING, b TIMESTAMP_LTZ", ""),
        ("a STRING, b FLOAT", "a CHARACTER(3), b REAL", ""),
        ("a TIMESTAMP, b TIMESTAMP_NTZ", "a TIMESTAMP WITH LOCAL TIME ZONE, b TIMESTAMP WITHOUT TIME ZONE", ""),
        ("a STRUCT<x: TIMESTAMP_NTZ>", "a STRUCT<x: timestamp without time zone>", ""),
    ],
)  # fmt: skip
def test_catalog_follows_when_files_of_before_are_read_by_the_declared_columns(
    before: str, now: str, said: str
) -> None:
    found = changes(columns(before), columns(now))
    assert found.refused == ()
    assert found.lag == said


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("a INT, b INT", "a INT", "b int is not declared any more"),
        ("a INT", "b INT", "a int is not declared any more"),
        ("a BIGINT", "a INT", "a is bigint in the catalog, declared is int"),
        ("a DOUBLE", "a FLOAT", "a is double in the catalog, declared is float"),
        ("a INT", "a STRING", "a is int in the catalog, declared is string"),
        ("a BIGINT", "a DOUBLE", "a is bigint in the catalog, declared is double"),
        ("a DATE", "a TIMESTAMP", "a is date in the catalog, declared is timestamp"),
        ("a DATE", "a TIMESTAMP_NTZ", "a is date in the catalog, declared is timestamp_ntz"),
        ("a DECIMAL(7, 4)", "a DECIMAL(7, 2)", "a is decimal(7,4) in the catalog, declared is decimal(7,2)"),
        ("a DECIMAL(7, 2)", "a DECIMAL(8, 4)", "a is decimal(7,2) in the catalog, declared is decimal(8,4)"),
        ("a STRUCT<x: INT, y: INT>", "a STRUCT<x: INT>", "a.y int is not declared any more"),
        ("a MAP<INT, INT>", "a MAP<BIGINT, INT>", "a is map<int,int> in the catalog, declared is map<bigint,int>"),
        ("a INT", "a ARRAY<INT>", "a is int in the catalog, declared is array<int>"),
    ],
)
def test_change_is_refused_when_files_of_before_cannot_be_read_by_it(before: str, now: str, said: str) -> None:
    assert [str(each) for each in changes(columns(before), columns(now)).refused] == [said]


def test_change_is_refused_when_partition_columns_differ() -> None:
    (refused,) = changes(columns("a INT", "date", "interval"), columns("a INT", "date", "zip", "interval")).refused
    assert "(date, interval) in the catalog, declared is (date, zip, interval)" in str(refused)


@pytest.mark.parametrize(
    ("now", "keep", "followed", "refused"),
    [
        ("a BIGINT, b INT", "types", 0, 1),
        ("a INT, b INT, c INT", "types", 1, 0),
        ("a INT, b INT, c INT", "columns", 0, 1),
        ("b INT, a INT", "types", 0, 0),
        ("b INT, a INT", "columns", 0, 1),
    ],
)
def test_fewer_changes_are_allowed_when_files_have_another_format(
    now: str, keep: str, followed: int, refused: int
) -> None:
    found = changes(columns("a INT, b INT"), columns(now), keep)  # type: ignore[arg-type]
    assert (len(found.followed), len(found.refused)) == (followed, refused)


def test_columns_are_the_declared_ones_when_read_from_spark_s_json() -> None:
    nested = {
        "type": "struct",
        "fields": [
            {"name": "n", "type": "integer", "nullable": True, "metadata": {}},
            {"name": "price", "type": "decimal(12,2)", "nullable": True, "metadata": {}},
            {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
            {
                "name": "deep",
                "type": {
                    "type": "array",
                    "containsNull": True,
                    "elementType": {
                        "type": "struct",
                        "fields": [
                            {
                                "name": "m",
                                "type": {
                                    "type": "map",
                                    "keyType": "string",
                                    "valueType": "long",
                                    "valueContainsNull": True,
                                },
                                "nullable": True,
                                "metadata": {},
                            }
                        ],
                    },
                },
                "nullable": True,
                "metadata": {},
            },
            {"name": "interval", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
    found = columns_of_json(json.dumps(nested), ["interval"])
    declared = columns("n INT, price DECIMAL(12, 2), at TIMESTAMP, deep ARRAY<STRUCT<m: MAP<STRING, BIGINT>>>")
    assert changes(found, declared) == changes(declared, declared)
    assert [type_name(each) for each in found.fields][-1] == "array<struct<m:map<string,bigint>>>"


@pytest.mark.spark
def test_column_does_not_lag_when_spark_stored_a_type_by_another_word(spark: Any) -> None:
    for kind in SPARK_HAS:
        stored = columns_of_json(StructType.fromDDL(f"a {kind}").json(), [])
        assert changes(stored, Columns(fields_of(f"a {kind}"), ())) == changes(stored, stored), kind


@pytest.mark.spark
@pytest.mark.parametrize("pipeline", all_pipelines(), ids=lambda each: each.name)
def test_tables_do_not_lag_when_they_were_created_as_declared(spark: Any, pipeline: Pipeline) -> None:
    from spark_jobs.archive.schema import table_schema

    for table in pipeline.tables:
        declared = declared_columns(pipeline, table)
        partition_by = ", ".join(f"`{name}` STRING" for name in declared.partition_by)
        schema = [*table_schema(pipeline, table), *StructType.fromDDL(partition_by)]
        stored = columns_of_json(StructType(schema).json(), declared.partition_by)
        assert check_columns(pipeline, table, stored).lag == ""


def test_error_names_table_column_types_and_remedy_when_a_change_is_refused() -> None:
    narrower = replace(PIPELINE.archive, columns=PIPELINE.archive.columns.replace("is_online BOOLEAN", "is_online INT"))
    stored = declared_columns(PIPELINE, PIPELINE.table)
    assert check_columns(PIPELINE, PIPELINE.table, stored).lag == ""
    with pytest.raises(UsageError) as raised:
        # Without the report that watches the column.
        check_columns(replace(PIPELINE, archive=narrower, reports=()), PIPELINE.table, stored)
    assert raised.value.exit_code == 64
    assert "lake.nest_cameras" in str(raised.value)
    assert "is_online is boolean in the catalog, declared is int" in str(raised.value)
    assert "declare a pipeline of another name" in str(raised.value)


def test_column_of_unknown_fields_is_added_but_not_removed_when_they_are_kept() -> None:
    keeping = replace(PIPELINE, decoder=replace(PIPELINE.decoder, unknown="keep"))  # type: ignore[call-arg]
    before, now = (declared_columns(each, PIPELINE.table) for each in (PIPELINE, keeping))
    assert changes(before, now).lag == "unknown_fields string is new"
    assert [str(each) for each in changes(now, before).refused] == ["unknown_fields string is not declared any more"]
