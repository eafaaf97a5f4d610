"""What a report's section shows of many rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import Findings
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Top
from include.times import Interval
from spark_jobs.intervals.report_sections import ROWS, collect_report
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import empty_frame

pytestmark = pytest.mark.spark

HOUR = (datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))


@pytest.mark.parametrize(("keys", "truncated"), [(ROWS - 1, 0), (ROWS, 0), (ROWS + 1, 1), (ROWS + 9, 9)])
def test_section_gives_the_number_of_hidden_rows_when_it_has_too_many(
    spark: Any, tmp_path: Path, keys: int, truncated: int
) -> None:
    pipeline = load_pipeline("nest_cameras")
    view = pipeline.views[0]
    top = Top("Most seen", view=view.name, measure="count", by=("zip_code",), rows=1000)
    pipeline = replace(pipeline, reports=(top,))
    counted = [(f"{key:05}", HOUR, key + 1) for key in range(keys)]
    location = str(tmp_path / "view")
    spark.createDataFrame(counted, view.columns).write.parquet(location)
    built = BuiltRevision(pipeline.view_table(view), "", "r1", location, keys, "", {})

    pinned = PinnedInterval(1, pipeline.name, Interval(*HOUR), (), {})
    run = IntervalRun(spark, pipeline, AttemptSpec(1, pinned, Source.KAFKA, "1", Findings(), None))
    report = collect_report(run, empty_frame(spark, spark.read.parquet(location).schema), [built])

    section = report["sections"][0]
    assert section["truncated"] == truncated
    assert [row[1] for row in section["rows"]] == list(range(keys, 0, -1))[:ROWS]
