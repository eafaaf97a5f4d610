"""What a report's section shows of many rows."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.errors import UsageError
from include.intervals.reporting import notifications
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import Findings
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing, Pipeline, Threshold, TimeWindow, Top
from include.times import Interval, utc
from spark_jobs.archive.replayed import Replayed
from spark_jobs.intervals import report_sections
from spark_jobs.intervals.report_sections import ROWS, collect_report, section_of
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import empty_frame, frame_of
from spark_jobs.views.speed_topic import with_window
from spark_jobs.views.values import key_json

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
    report = report_of(spark, tmp_path, pipeline, counted)

    section = report["sections"][0]
    assert section["truncated"] == truncated
    assert [row[1] for row in section["rows"]] == list(range(keys, 0, -1))[:ROWS]


def report_of(spark: Any, tmp_path: Path, pipeline: Pipeline, counted: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the report of an interval whose first view has these rows."""
    view, location = pipeline.views[0], str(tmp_path / "view")
    spark.createDataFrame(counted, view.columns).write.parquet(location)
    built = BuiltRevision(pipeline.view_table(view), "", "r1", location, len(counted), "", {})
    pinned = PinnedInterval(1, pipeline.name, Interval(*HOUR), (), {})
    run = IntervalRun(spark, pipeline, AttemptSpec(1, pinned, Source.KAFKA, "1", Findings(), None))
    rows = empty_frame(spark, spark.read.parquet(location).schema)
    report, _ = collect_report(run, rows, Replayed(rows, 0, ""), [built])
    return report


def test_chart_adds_up_to_all_rows_when_the_view_has_more_keys_than_series(spark: Any, tmp_path: Path) -> None:
    pipeline = replace(load_pipeline("nest_cameras"), reports=())
    later = (HOUR[1], HOUR[1] + timedelta(hours=1))
    counted = [(f"{key:05}", window, 100 + key) for key in range(10) for window in (HOUR, later)]
    # A key of the others alone has a window of its own.
    counted.append(("00000", (later[1], later[1] + timedelta(hours=1)), 1))
    chart = report_of(spark, tmp_path, pipeline, counted)["chart"]
    assert chart["x"] == ["2026-11-20 05:00", "2026-11-20 06:00", "2026-11-20 07:00"]
    assert [each["name"] for each in chart["series"]] == [f"{key:05}" for key in range(9, 3, -1)]
    assert chart["others"] == {"keys": 4, "values": [406, 406, 1]}


def test_chart_has_the_sums_when_windows_are_short_and_keys_have_the_same_text(spark: Any, tmp_path: Path) -> None:
    pipeline = load_pipeline("auction_bids")
    view = replace(pipeline.views[0], windows=TimeWindow("20s", "10s"))
    pipeline = replace(pipeline, views=(view, *pipeline.views[1:]), reports=())
    counted = []
    for second in (0, 10, 20):
        start = HOUR[0] + timedelta(seconds=second)
        for category, currency in (("a", None), (None, "a"), ("b", "EUR")):
            counted.append((category, currency, (start, start + timedelta(seconds=20)), second + 1, None, None))
    chart = report_of(spark, tmp_path, pipeline, counted)["chart"]
    assert chart["x"] == ["2026-11-20 05:00:00", "2026-11-20 05:00:10", "2026-11-20 05:00:20"]
    assert chart["series"] == [{"name": "a", "values": [2, 22, 42]}, {"name": "b EUR", "values": [1, 11, 21]}]
    assert "others" not in chart


def test_chart_is_kept_as_json_when_its_measure_is_a_decimal(spark: Any, tmp_path: Path) -> None:
    declared = load_pipeline("nest_cameras")
    columns = declared.views[0].columns.replace("count BIGINT", "amount DECIMAL(19,2)")
    view = replace(declared.views[0], measures=("amount",), columns=columns)
    later = (HOUR[1], HOUR[1] + timedelta(hours=1))
    counted = [("94107", HOUR, Decimal("2.50")), ("94107", later, Decimal("3.00")), ("94108", HOUR, None)]
    report = report_of(spark, tmp_path, replace(declared, views=(view,), reports=()), counted)
    series = json.loads(json.dumps(report))["chart"]["series"]
    assert {each["name"]: each["values"] for each in series} == {"94107": [2.5, 3], "94108": [None, 0]}


def test_keys_above_a_threshold_are_listed_when_their_columns_names_need_quotes(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline("nest_cameras")
    columns = "`zip-code` STRING, `the window` STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT"
    view = replace(pipeline.views[0], key=("zip-code", "the window"), window="the window", columns=columns)
    pipeline = replace(pipeline, views=(view,), reports=())
    rows = frame_of(spark, [("94107", HOUR, 7), ("94108", HOUR, 3)], columns)
    speed = rows.select(key_json(view).alias("key"), F.col("count") + 1).toDF("key", "count")
    monkeypatch.setattr(report_sections, "speed_values", lambda *_: speed)
    monkeypatch.setattr(report_sections, "written_since", lambda *_: None)
    report = Threshold("Busy", view=view.name, measure="count", above=5)
    section = section_of(spark, pipeline, report, {view.name: rows}, rows, "the interval")
    assert section["columns"] == ["zip-code", "from", "to", "batch_view", "speed_view"]
    assert section["rows"] == [["94107", "2026-11-20T05:00:00Z", "2026-11-20T06:00:00Z", 7, 8]]
    windows = with_window(view, speed).select("key", "start", "end").collect()
    assert {(utc(row["start"]), utc(row["end"])) for row in windows} == {HOUR}


def test_keys_above_a_threshold_are_listed_without_speed_values_when_the_topic_of_the_view_is_gone(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registered interval can still be built again."""

    def gone(*_: Any) -> Any:
        raise UsageError("the topic does not exist")

    pipeline = load_pipeline("nest_cameras")
    view = pipeline.views[0]
    rows = frame_of(spark, [("94107", HOUR, 7), ("94108", HOUR, 3)], view.columns)
    monkeypatch.setattr(report_sections, "speed_values", gone)
    monkeypatch.setattr(report_sections, "written_since", lambda *_: None)
    report = Threshold("Busy", view=view.name, measure="count", above=5)
    section = section_of(spark, pipeline, report, {view.name: rows}, rows, "the interval")
    assert [(row[0], *row[3:]) for row in section["rows"]] == [("94107", 7, "")]


def test_windows_of_a_key_are_in_their_order_when_they_are_equally_far_above_a_threshold(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline("nest_cameras")
    view = pipeline.views[0]
    later = (HOUR[1], HOUR[1] + timedelta(hours=1))
    rows = frame_of(spark, [("94107", later, 7), ("94107", HOUR, 7)], view.columns).coalesce(1)
    monkeypatch.setattr(report_sections, "speed_values", lambda *_: rows.select(key_json(view).alias("key"), "count"))
    monkeypatch.setattr(report_sections, "written_since", lambda *_: None)
    report = Threshold("Busy", view=view.name, measure="count", above=5)
    section = section_of(spark, pipeline, report, {view.name: rows}, rows, "the interval")
    assert [row[1] for row in section["rows"]] == ["2026-11-20T05:00:00Z", "2026-11-20T06:00:00Z"]


FAR = "20261-01-01"


def test_listing_shows_a_date_or_time_as_text_when_python_cannot_hold_it(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Listing("Born", rows="born", columns=("n", "day", "at", "local", "both", "tags"))
    rows = spark.sql(
        "SELECT n, day, at, at::TIMESTAMP_NTZ AS local, struct(day, n) AS both, array(n) AS tags FROM ("
        f"SELECT 1 AS n, date '+{FAR}' AS day, timestamp_micros(1763615107000000000) AS at UNION ALL "
        "SELECT 2, date '0000-01-01', timestamp_micros(-99999999999999999) UNION ALL "
        "SELECT 3, date '2026-11-20', timestamp '2026-11-20 05:00:00.5' UNION ALL SELECT 4, NULL, NULL)"
    )
    monkeypatch.setattr(report_sections, "transform", lambda *_: lambda frame: frame)
    section = section_of(spark, load_pipeline("nest_cameras"), report, {}, rows, "the interval")
    far, before, now, none = section["rows"]
    assert far[:4] == [1, f"+{FAR}", "+57856-09-26T21:16:40Z", "+57856-09-26T21:16:40Z"]
    assert before[1] == "0000-01-01"
    assert now == [
        3, "2026-11-20", "2026-11-20T05:00:00.500000Z", "2026-11-20T05:00:00.500000Z", "{2026-11-20, 3}", "[3]",
    ]  # fmt: skip
    assert none[1:4] == ["", "", ""]


def test_top_shows_a_date_as_text_when_python_cannot_hold_it(spark: Any) -> None:
    top = Top("Most born", view="any", measure="hits", by=("day",), rows=10)
    rows = spark.sql(f"SELECT date '+{FAR}' AS day, 2 AS hits UNION ALL SELECT date '2026-11-20', 3")
    section = section_of(spark, load_pipeline("nest_cameras"), top, {"any": rows}, rows, "the interval")
    assert section["rows"] == [["2026-11-20", 3], [f"+{FAR}", 2]]
    assert section["keys"] == ["day"]


def test_listing_shows_and_notes_the_same_rows_when_the_input_is_divided_differently(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Listing("Down", rows="down", columns=("state", "device", "tags"), key=("device",), notify="down")
    # Their order by the first column alone is not defined.
    rows = spark.range(500).selectExpr(
        "'down' AS state", "id * 7919 % 500 AS device", "map('n', id, 'm', null) AS tags", "struct(id) AS other"
    )
    monkeypatch.setattr(report_sections, "transform", lambda *_: lambda frame: frame)
    monkeypatch.setattr(notifications, "MOST", 20)
    pipeline = load_pipeline("nest_cameras")
    shown, noted = [], []
    for divided in (rows.repartition(1, "other"), rows.repartition(7, "device")):
        section, listed = report_sections._noted_listing(pipeline, report, divided)
        noted.append([each.row for each in listed.rows])
        shown.append(section)
        shown.append(section_of(spark, pipeline, report, {}, divided, "the interval"))
    assert [row[1] for row in shown[0]["rows"]] == list(range(ROWS))
    assert all(each == shown[0] for each in shown)
    assert [row["device"] for row in noted[0]] == list(range(20))
    assert noted[0] == noted[1]


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("bigint", [7, 8, 9]),
        # As the ledger orders them: texts.
        ("decimal(4, 1)", ["10.0", "11.0", "12.0"]),
        ("double", ["10.0", "11.0", "12.0"]),
    ],
)
def test_noted_rows_are_the_first_by_their_keys_when_a_listing_has_too_many(
    spark: Any, monkeypatch: pytest.MonkeyPatch, kind: str, first: list[Any]
) -> None:
    report = Listing("Down", rows="down", columns=("since", "device"), key=("device",), notify="down")
    monkeypatch.setattr(report_sections, "transform", lambda *_: lambda frame: frame)
    monkeypatch.setattr(notifications, "MOST", 3)
    rows = spark.range(7, 13).selectExpr("-id AS since", f"cast(id AS {kind}) AS device")
    section, noted = report_sections._noted_listing(load_pipeline("nest_cameras"), report, rows)
    assert [row[0] for row in section["rows"]] == list(range(-12, -6))
    assert [each.row["device"] for each in noted.rows] == first


def test_rows_have_keys_of_their_own_when_they_differ_in_a_fraction_of_a_second_or_in_null_and_empty(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Listing("Alarms", rows="alarms", columns=("device", "since"), key=("device", "since"), notify="alarms")
    monkeypatch.setattr(report_sections, "transform", lambda *_: lambda frame: frame)
    rows = spark.sql(
        "SELECT device, timestamp '2026-11-20 05:00:00' + make_dt_interval(0, 0, 0, second) AS since "
        "FROM VALUES ('a', 0.2), ('a', 0.7), ('a', 1), (NULL, 0), ('', 0) AS _(device, second)"
    )
    section, noted = report_sections._noted_listing(load_pipeline("nest_cameras"), report, rows)
    assert len({each.key for each in noted.rows}) == 5
    assert [json.loads(each.key)["device"] for each in noted.rows] == [None, "", "a", "a", "a"]
    times = ["2026-11-20T05:00:00.200000Z", "2026-11-20T05:00:00.700000Z", "2026-11-20T05:00:01Z"]
    assert [each.row["since"] for each in noted.rows[2:]] == [row[1] for row in section["rows"][2:]] == times
    # A row shows both alike.
    assert [each.row["device"] for each in noted.rows[:2]] == ["", ""]


def test_replayed_row_is_not_listed_as_the_state_at_the_end_when_replays_delivered_it(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"rows": "down", "columns": ("device",), "key": ("device",)}
    reports = (Listing("Told", **columns, notify="down"), Listing("Shown", **columns))  # type: ignore[arg-type]
    monkeypatch.setattr(report_sections, "transform", lambda *_: lambda frame: frame)
    pipeline = replace(load_pipeline("nest_cameras"), views=(), reports=reports)
    pinned = PinnedInterval(1, pipeline.name, Interval(*HOUR), (), {})
    run = IntervalRun(spark, pipeline, AttemptSpec(1, pinned, Source.KAFKA, "1", Findings(), None))
    rows, old = (spark.createDataFrame([(device,)], "device STRING") for device in ("cam-1", "cam-2"))
    report, (noted,) = collect_report(run, rows, Replayed(old, 1, ""), [])
    assert [section["rows"] for section in report["sections"]] == [[["cam-1"]], [["cam-1"]]]
    assert [each.row for each in noted.rows] == [{"device": "cam-1"}]
    # What a rebuild lists is compared at most.
    rebuilt = replace(run, attempt=replace(run.attempt, is_rebuild=True))
    assert collect_report(rebuilt, rows, Replayed(old, 1, ""), []) == (report, [])
