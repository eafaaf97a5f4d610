"""The transforms of isp_hits on a few rows each, always with a null."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from include.pipelines.isp_hits import PIPELINE
from tests.support.views import aggregated

pytestmark = pytest.mark.spark

HITS = "zipcode STRING, isp STRING, user STRING, event_time TIMESTAMP"


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 11, 20, 5, minute, second)


def test_hit_lies_in_both_windows_when_they_overlap(spark: Any) -> None:
    rows = [("94103", "a", "u", at(2)), ("94103", "a", "u", at(1, 59)), (None, "a", "u", at(7))]
    counted = aggregated("isp_hits", "by_zip", spark.createDataFrame(rows, HITS))
    found = {(r.zipcode, r.window.start.strftime("%H:%M")): (r.hits, r.window.end) for r in counted.collect()}
    assert {key: hits for key, (hits, _) in found.items()} == {
        ("94103", "04:52"): 1,
        ("94103", "04:57"): 2,
        ("94103", "05:02"): 1,
        (None, "05:02"): 1,
        (None, "05:07"): 1,
    }
    assert found[("94103", "05:02")][1] == at(12)
    assert counted.columns == ["zipcode", "window", "hits"]


def test_hits_by_isp_are_those_of_a_utc_day_when_they_are_counted(spark: Any) -> None:
    rows = [("1", "a", "u", datetime(2026, 11, 20)), ("1", "a", None, datetime(2026, 11, 20, 23, 59, 59)),
            ("1", "a", "u", datetime(2026, 11, 21))]  # fmt: skip
    counted = aggregated("isp_hits", "by_isp", spark.createDataFrame(rows, HITS))
    found = {r.window.start.day: r.hits for r in counted.collect()}
    assert found == {20: 2, 21: 1}


def test_hits_without_a_provider_are_counted_by_zip_code_only_when_they_name_none(spark: Any) -> None:
    from spark_jobs.views.aggregate import aggregate_view

    rows = spark.createDataFrame([("1", "a", "u", at(2)), ("1", None, "u", at(2)), ("1", "", None, at(2))], HITS)
    views = {view.name: view for view in PIPELINE.views}
    found = {name: aggregate_view(PIPELINE, view, rows, {}).collect() for name, view in views.items()}
    assert {(row.isp, row.hits) for name in ("by_isp", "isp_totals") for row in found[name]} == {("a", 1), ("", 1)}
    assert {(row.zipcode, row.hits) for name in ("by_zip", "zip_totals") for row in found[name]} == {("1", 3)}


def test_counts_go_to_their_half_of_the_country_when_they_are_sent(spark: Any) -> None:
    from spark_jobs.transforms.isp_hits import regional_messages

    window = (at(2), at(12))
    counts = spark.createDataFrame(
        [("10001", window, 3), ("94103", window, 4), ("", window, 5)],
        "zipcode STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT",
    )
    found = {r.key: (r.topic, r.value) for r in regional_messages(counts).collect()}
    assert found["10001"] == ("isp-hits-east", '{"hits":3,"window_start":"2026-11-20T05:02:00Z","zipcode":"10001"}')
    assert found["94103"][0] == "isp-hits-west"
    assert found[""][0] == "isp-hits-east"


def test_users_are_counted_once_when_they_repeat_and_not_at_all_when_unknown(spark: Any) -> None:
    from spark_jobs.transforms.isp_hits import users_by_zip

    rows = [("1", "a", "u", at(1)), ("1", "a", "u", at(2)), ("1", "a", "v", at(3)), ("1", "a", None, at(4))]
    assert [tuple(r) for r in users_by_zip(spark.createDataFrame(rows, HITS)).collect()] == [("1", 2, 4)]


def test_totals_count_all_hits_when_times_differ(spark: Any) -> None:
    rows = spark.createDataFrame(
        [("1", "a", "u", at(2)), ("1", "b", "u", at(2) + timedelta(days=200)), ("2", "a", "v", at(3))], HITS
    )
    assert {tuple(row) for row in aggregated("isp_hits", "zip_totals", rows).collect()} == {("1", 2), ("2", 1)}
    assert {tuple(row) for row in aggregated("isp_hits", "isp_totals", rows).collect()} == {("a", 2), ("b", 1)}


def test_rows_lie_in_the_declared_windows_when_they_are_counted(spark: Any) -> None:
    from include.pipelines import load_pipeline

    for view in load_pipeline("isp_hits").views:
        if view.is_total:
            continue
        rows = spark.createDataFrame([("1", "a", "u", at(2))], HITS)
        windows = [row[view.window] for row in aggregated("isp_hits", view.name, rows).collect()]
        lengths = {(window.end - window.start).total_seconds() for window in windows}
        starts = {int(window.start.timestamp() - view.windows.start_seconds) % view.windows.slide_seconds
                  for window in windows}  # fmt: skip
        assert (lengths, starts) == ({view.windows.length_seconds}, {0})
        assert len(windows) == len(view.windows.tumbling())
