"""Spark's types from declarations."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from spark_jobs.spark.schemas import struct_of


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
