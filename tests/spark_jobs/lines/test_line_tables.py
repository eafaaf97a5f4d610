"""The shell's tables of lines: older files are read by the names that their columns have now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.pipelines import load_line_pipeline
from spark_jobs.lines.line_tables import LineTables
from tests.conftest import Home
from tests.support.committed import commit

pytestmark = [pytest.mark.spark, pytest.mark.services]

AT = datetime(2026, 11, 20, 5, tzinfo=UTC)


def test_archive_and_views_have_a_renamed_column_s_values_when_lines_landed_before(postgres: Home, spark: Any) -> None:
    declared = load_line_pipeline("isp_hits_files")
    assert declared
    pipeline = replace(declared, archive=replace(declared.archive, renamed={"isp": "network"}))
    for number, name in enumerate(("network", "isp")):
        commit(pipeline.name, number, number, number + 1, archived=1)
        row = {"zipcode": "94103", "hittime": AT, name: name, "user": "u"}
        _, file = lake.filesystem(lake.uri(f"landing/{pipeline.name}/{number}/fate=archived/part.parquet"))
        pq.write_table(pa.Table.from_pylist([row]), file)
    LineTables(spark, pipeline).refresh()
    assert sorted(row.isp for row in spark.table("isp_hits_files_live").collect()) == ["isp", "network"]
    assert sorted(tuple(row) for row in spark.table("isp_totals").collect()) == [("isp", 1), ("network", 1)]
