"""A table that is created by the former name of a column, whatever the names inside of its columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec import Archive

pytestmark = pytest.mark.spark


def test_table_shows_a_former_name_when_a_name_inside_of_a_column_needs_quotes(
    empty_home: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.publication import catalog

    columns = "pace DOUBLE, at TIMESTAMP, of STRUCT<`odd name`: STRUCT<`a-b`: ARRAY<INT>, c: MAP<STRING, DATE>>>"
    archive = Archive(rows="rows", columns=columns, event_time="at", renamed={"pace": "speed"})
    pipeline = replace(load_pipeline("nest_cameras"), name="shown", archive=archive, views=(), reports=())
    monkeypatch.setattr(catalog, "shown_names", lambda *_: {"pace": "speed"})
    catalog.Catalog(spark, pipeline).create_tables()
    kinds = {each.name: each.dataType.simpleString() for each in spark.table(f"lake.{pipeline.table}").schema}
    assert list(kinds)[:3] == ["speed", "at", "of"]
    assert kinds["of"] == "struct<odd name:struct<a-b:array<int>,c:map<string,date>>>"
    spark.sql(f"DROP TABLE lake.{pipeline.table}")
