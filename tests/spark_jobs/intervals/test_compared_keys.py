"""Which rows of two revisions are compared with each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline

pytestmark = pytest.mark.spark

COLUMNS = "zip_code STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, at TIMESTAMP, count BIGINT"


def test_rows_of_a_view_are_told_apart_when_their_keys_differ_by_microseconds(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import revision_comparison

    pipeline = load_pipeline("nest_cameras")
    [declared] = pipeline.views
    view = replace(declared, columns=COLUMNS, key=("zip_code", "window", "at"))
    pipeline = replace(pipeline, views=(view,))
    monkeypatch.setattr(revision_comparison, "damaged_files", lambda *file, deep: ())

    def revision(name: str, last: int) -> BuiltRevision:
        hour = "named_struct('start', TIMESTAMP'2026-11-20 05:00:00', 'end', TIMESTAMP'2026-11-20 06:00:00')"
        rows = spark.sql(
            f"SELECT '75001' AS zip_code, {hour} AS window, timestamp_micros(1795152600000000 + n) AS at, "
            f"CASE WHEN n = 2 THEN {last}L ELSE n END AS count FROM (SELECT explode(array(1L, 2L, 3L)) AS n)"
        )
        location = (tmp_path / name).as_uri()
        rows.coalesce(1).write.parquet(location)
        [file] = (tmp_path / name).glob("*.parquet")
        return BuiltRevision(
            pipeline.view_table(view), "interval=2026-11-20T05", name, location, 3, name, {file.name: {}}
        )

    both = revision("before", 2), revision("now", 9)
    found = revision_comparison._compare(spark, pipeline, both[0].table, both, revision_comparison.EXAMPLES)
    assert {name: found[name] for name in ("added", "removed", "changed")} == {"added": 0, "removed": 0, "changed": 1}
    [example] = found["examples"]
    assert (example["change"], "00.000002Z" in example["key"]) == ("changed", True)
