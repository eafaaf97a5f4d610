"""Generated code is compiled once for a driver and its tasks in one JVM, and the JVM asked once for a class."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import functions as F

from spark_jobs.spark import session
from spark_jobs.spark.session import keep_classes, share_class_loader

QUERY = "id * id + 7 * length(concat('of test_class_loader', cast(id as string))) AS n"


def compiled(spark: Any) -> int:
    """How many classes the JVM has compiled since its start."""
    return int(spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_SOURCE_CODE_SIZE().getCount())


def test_code_of_a_query_is_compiled_once_for_driver_and_tasks(spark: Any) -> None:
    assert share_class_loader(spark.sparkContext)
    before = compiled(spark)
    [row] = spark.range(3, 4).selectExpr(QUERY).collect()
    assert row["n"] == 9 + 7 * len("of test_class_loader3")
    assert compiled(spark) == before + 1


def test_session_goes_on_when_spark_has_other_names_inside(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = session._inside
    monkeypatch.setattr(session, "_inside", lambda instance, name: inside(instance, f"{name}_renamed"))
    assert not share_class_loader(spark.sparkContext)
    assert spark.range(3).count() == 3


def test_jvm_is_asked_for_no_class_or_method_again_when_columns_are_made(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def column() -> Any:
        return F.transform(F.array(F.lit(1), F.col("id")), lambda each: F.coalesce(each, F.lit(2)) + 1)

    keep_classes(spark.sparkContext)
    made = str(column())
    asked = []
    for kind in (JVMView, JavaClass):
        monkeypatch.setattr(kind, "__getattr__", lambda self, name: asked.append(name))
    assert str(column()).split("(")[0] == made.split("(")[0]
    assert asked == []
