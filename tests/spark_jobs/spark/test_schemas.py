"""Spark's types from declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from spark_jobs.archive.content_hash import row_hashes
from spark_jobs.spark.schemas import reads_as, struct_of
from tests.support.spark_types import NOT_IN_CSV, NOT_IN_JSON, NOT_STORED, OF_TABLES_ALONE, SPARK_HAS, SPARK_HAS_NOT


def test_struct_is_a_new_one_each_time_because_callers_add_columns_to_it(spark: Any) -> None:
    first = struct_of("a STRING, b BIGINT")
    first.add("c", StringType())
    assert struct_of("a STRING, b BIGINT") == StructType().add("a", StringType()).add("b", LongType())


def test_declaration_is_parsed_once_when_it_is_asked_for_again(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    struct_of("once STRING")
    monkeypatch.setattr(StructType, "fromDDL", None)
    assert struct_of("once STRING").names == ["once"]


def test_other_ddl_is_refused(spark: Any) -> None:
    with pytest.raises(TypeError, match="not a list of columns: BIGINT"):
        struct_of("BIGINT")


def test_spark_has_the_types_that_declarations_may_have_and_no_other(spark: Any) -> None:
    for kind in SPARK_HAS:
        assert struct_of(f"a {kind}").names == ["a"], kind
    for kind in SPARK_HAS_NOT:
        # Spark's parser raises errors of several kinds.
        with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
            struct_of(f"a {kind}")


def reads(ask: Callable[[], Any]) -> bool:
    """Return whether Spark takes a query; what PySpark makes of its values does not count."""
    try:
        ask()
    except PySparkException:
        return False
    return True


def test_spark_refuses_the_types_that_declarations_are_refused_for(spark: Any, tmp_path: Path) -> None:
    """Declarations know these without Spark."""
    one = spark.range(1)

    def columns(kinds: Sequence[str]) -> str:
        return ", ".join(f"a{number} {kind}" for number, kind in enumerate(kinds))

    def from_json(*kinds: str) -> bool:
        read = F.from_json(F.lit("{}"), struct_of(columns(kinds)))
        return reads(lambda: one.select(*(read[f"a{number}"].isNull() for number in range(len(kinds)))).collect())

    def from_csv(*kinds: str) -> bool:
        read = F.from_csv(F.lit("x"), columns(kinds))
        return reads(lambda: one.select(*(read[f"a{number}"].isNull() for number in range(len(kinds)))).collect())

    def stored(*kinds: str) -> bool:
        schema = struct_of(columns(kinds))

        def write() -> None:
            rows = one.select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in schema))
            rows.select(*row_hashes(schema))
            rows.write.mode("overwrite").parquet(str(tmp_path / "rows"))

        return reads(write)

    refused = {
        from_json: {*OF_TABLES_ALONE, *NOT_IN_JSON},
        from_csv: {*OF_TABLES_ALONE, *NOT_IN_CSV},
        stored: {*NOT_STORED},
    }
    for ask, kinds in refused.items():
        assert [kind for kind in sorted(kinds) if ask(kind)] == [], ask.__name__
        nested = ("ARRAY", "MAP", "STRUCT") if ask is from_csv else ()
        others = [kind for kind in SPARK_HAS if kind not in kinds and not kind.startswith(nested or ("-",))]
        # Only a refusal is asked of each kind.
        assert ask(*others) or [kind for kind in others if not ask(kind)] == [], ask.__name__


def test_values_come_back_when_files_are_read_as_a_wider_type(spark: Any, tmp_path: Path) -> None:
    whole = ["TINYINT", "SMALLINT", "INT", "BIGINT"]
    decimals = ["DECIMAL(5, 2)", "DECIMAL(12, 2)", "DECIMAL(14, 4)", "DECIMAL(30, 9)", "DECIMAL(38, 9)"]
    pairs = [
        *combinations_with_replacement(whole, 2),
        *combinations_with_replacement(decimals, 2),
        ("FLOAT", "DOUBLE"),
        *((kind, "DOUBLE") for kind in whole[:3]),
        *((kind, "DECIMAL(12, 2)") for kind in whole[:3]),
        ("BIGINT", "DECIMAL(22, 2)"),
        ("DATE", "TIMESTAMP_NTZ"),
        ("TIMESTAMP_NTZ", "TIMESTAMP"),
    ]
    shapes = "c{n} {kind}, s{n} STRUCT<x: {kind}>, a{n} ARRAY<STRUCT<x: {kind}>>, m{n} MAP<STRING, {kind}>"
    written, declared = (
        struct_of(", ".join(shapes.format(n=n, kind=pair[side]) for n, pair in enumerate(pairs))) for side in (0, 1)
    )
    assert reads_as(written, declared)
    columns = []
    for n, (kind, _) in enumerate(pairs):
        literal = 7.5 if kind in decimals or kind == "FLOAT" else 7
        value = F.lit("2026-11-20" if kind in ("DATE", "TIMESTAMP_NTZ") else literal).cast(kind)
        nested = (F.struct(value.alias("x")), F.array(F.struct(value.alias("x"))), F.create_map(F.lit("k"), value))
        columns += [each.alias(f"{name}{n}") for name, each in zip("csam", (value, *nested), strict=True)]
    frame = spark.range(1).select(*columns)
    assert frame.schema.simpleString() == written.simpleString()
    frame.write.parquet((tmp_path / "written").as_uri())
    (row,) = spark.read.schema(declared).parquet((tmp_path / "written").as_uri()).collect()
    (meant,) = frame.select(*(F.col(each.name).cast(each.dataType) for each in declared)).collect()
    assert row == meant


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        ("BIGINT", "INT"),
        ("DOUBLE", "FLOAT"),
        ("INT", "STRING"),
        ("DECIMAL(12, 2)", "DECIMAL(12, 4)"),
        ("INT", "FLOAT"),
        ("BIGINT", "DOUBLE"),
        ("INT", "DECIMAL(9, 0)"),
        ("BIGINT", "DECIMAL(19, 0)"),
        ("TIMESTAMP", "TIMESTAMP_NTZ"),
    ],
)
def test_type_does_not_read_as_another_when_values_would_not_come_back(spark: Any, written: str, declared: str) -> None:
    assert not reads_as(*(struct_of(f"c ARRAY<STRUCT<x: {kind}>>") for kind in (written, declared)))
