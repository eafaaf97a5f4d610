"""A view's rows by part: what each part gives by itself, in one aggregation where the view's transforms allow it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import UsageError
from include.ledger.archive.micro_batches import CommittedBatch
from include.ledger.intervals.evidence import LateBound, SpeedPosition
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Pipeline, TimeWindow
from include.times import utc
from spark_jobs.archive.replayed import Replayed
from tests.spark_jobs.transforms.test_golden import GOLDEN, PIPELINES, plain

pytestmark = pytest.mark.spark

VIEWS = [
    (name, view.name)
    for name, pipeline in ((each, load_pipeline(each)) for each in PIPELINES)
    for view in pipeline.views
    if view.windows
]

PARTS = ("inside", "elsewhere")


def archived(spark: Any, pipeline: Pipeline) -> Any:
    """The pipeline's golden rows in three parts, of which one does not count."""
    from pyspark.sql import functions as F

    from spark_jobs.decoding.records import archive_rows, decode
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS
    from spark_jobs.views.aggregate import PART

    lines = (GOLDEN / pipeline.name / "messages.jsonl").read_text(encoding="utf-8").splitlines() * 3
    records = [
        (None, message["value"].encode(), "golden", 0, offset, datetime.fromisoformat(message["timestamp"]), 0, [])
        for offset, message in enumerate(map(json.loads, lines))
    ]
    third = len(lines) // 3
    part = F.when(F.col("kafka_offset") < third, PARTS[0]).when(F.col("kafka_offset") < 2 * third, PARTS[1])
    return archive_rows(pipeline, decode(pipeline, frame_of(spark, records, KAFKA_COLUMNS))).withColumn(PART, part)


@pytest.fixture(scope="module")
def golden_rows(spark: Any) -> Iterator[Callable[[Pipeline], Any]]:
    """The golden rows of each pipeline, which are decoded once."""
    kept: dict[str, Any] = {}

    def rows(pipeline: Pipeline) -> Any:
        if pipeline.name not in kept:
            kept[pipeline.name] = archived(spark, pipeline).persist()
        return kept[pipeline.name]

    yield rows
    for each in kept.values():
        each.unpersist()


def each_by_itself(spark: Any, pipeline: Pipeline, view: AdditiveView, rows: Any) -> list[Any]:
    from pyspark.sql import functions as F

    from spark_jobs.decoding.records import load_references
    from spark_jobs.views.aggregate import PART, aggregate_view

    references = load_references(spark, pipeline)
    return [
        {**row, PART: part}
        for part in PARTS
        for row in plain(aggregate_view(pipeline, view, rows.where(F.col(PART) == part).drop(PART), references))
    ]


def all_at_once(spark: Any, pipeline: Pipeline, view: AdditiveView, rows: Any) -> list[Any]:
    from spark_jobs.decoding.records import load_references
    from spark_jobs.views.aggregate import PART, aggregate_parts

    references = load_references(spark, pipeline)
    found = [
        row
        for series in view.time_windows.tumbling()
        for row in plain(aggregate_parts(pipeline, view, rows, references, series, PARTS))
    ]
    for row in found:
        row[view.window].pop(PART, None)
    return found


def in_order(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def watched(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, Any], Any]) -> list[str]:
    """Have each transform's result changed; returns the names of those that are called from then on."""
    from spark_jobs.views import aggregate

    called: list[str] = []
    honest = aggregate.transform

    def transform(pipeline: Pipeline, name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            called.append(name)
            return change(name, honest(pipeline, name)(*arguments))

        return run

    monkeypatch.setattr(aggregate, "transform", transform)
    return called


@pytest.mark.parametrize(("name", "view_name"), VIEWS)
def test_parts_are_what_each_gives_by_itself_when_they_are_added_up_at_once(
    spark: Any, monkeypatch: pytest.MonkeyPatch, golden_rows: Callable[[Pipeline], Any], name: str, view_name: str
) -> None:
    pipeline = load_pipeline(name)
    view = next(each for each in pipeline.views if each.name == view_name)
    rows = golden_rows(pipeline)
    expected = each_by_itself(spark, pipeline, view, rows)
    assert expected
    called = watched(monkeypatch, lambda _, frame: frame)
    assert in_order(all_at_once(spark, pipeline, view, rows)) == in_order(expected)
    assert called.count(view.aggregate) == len(view.time_windows.tumbling())


@pytest.mark.parametrize("left_out_by", ["rows", "aggregate"])
def test_parts_are_right_when_a_transform_leaves_their_column_out(
    spark: Any, monkeypatch: pytest.MonkeyPatch, golden_rows: Callable[[Pipeline], Any], left_out_by: str
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.views.aggregate import PART

    pipeline = load_pipeline("nest_cameras")
    [view] = pipeline.views
    rows = golden_rows(pipeline)
    expected = each_by_itself(spark, pipeline, view, rows)

    def change(name: str, frame: Any) -> Any:
        if left_out_by == "rows":
            return frame.drop(PART)
        window = F.struct(F.col(f"{view.window}.start"), F.col(f"{view.window}.end"))
        return frame.withColumn(view.window, window) if name == view.aggregate else frame

    watched(monkeypatch, change)
    assert in_order(all_at_once(spark, pipeline, view, rows)) == in_order(expected)


@pytest.mark.parametrize(("column", "what"), [("zip_code", "key"), ("window", "key"), ("count", "measures")])
def test_view_is_refused_when_its_aggregate_leaves_a_column_out(
    spark: Any, monkeypatch: pytest.MonkeyPatch, golden_rows: Callable[[Pipeline], Any], column: str, what: str
) -> None:
    pipeline = load_pipeline("nest_cameras")
    [view] = pipeline.views
    rows = golden_rows(pipeline)
    watched(monkeypatch, lambda name, frame: frame.drop(column) if name == view.aggregate else frame)
    said = f"nest_cameras: the aggregate hourly_counts of the view hourly_counts returns no column {column}, only "
    with pytest.raises(UsageError, match=f"{said}.* — let it return {column}, or take it from the view's {what}"):
        each_by_itself(spark, pipeline, view, rows)


@pytest.mark.parametrize(
    ("column", "kind", "is_refused"),
    [
        ("count", "DOUBLE", True),
        ("count", "STRING", True),
        ("count", "DECIMAL(12, 2)", True),
        ("count", "DECIMAL(12, 0)", False),
        ("count", "INT", False),
        ("zip_code", "INT", True),
    ],
)
def test_view_is_refused_when_its_aggregate_returns_another_type(
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    golden_rows: Callable[[Pipeline], Any],
    column: str,
    kind: str,
    is_refused: bool,
) -> None:
    """A sum of doubles, declared as a decimal, would depend on the order of the rows."""
    pipeline = load_pipeline("nest_cameras")
    [view] = pipeline.views
    rows = golden_rows(pipeline)

    def cast(name: str, frame: Any) -> Any:
        return frame.withColumn(column, frame[column].try_cast(kind)) if name == view.aggregate else frame

    watched(monkeypatch, cast)
    if not is_refused:
        assert each_by_itself(spark, pipeline, view, rows)
        return
    said = (
        f"the aggregate hourly_counts of the view hourly_counts returns {column} as {kind.lower().replace(', ', ',')}"
    )
    with pytest.raises(UsageError) as refused:
        each_by_itself(spark, pipeline, view, rows)
    assert said in str(refused.value)


def test_parts_are_right_when_windows_overlap(spark: Any, golden_rows: Callable[[Pipeline], Any]) -> None:
    pipeline = load_pipeline("nest_cameras")
    view = replace(pipeline.views[0], windows=TimeWindow("1h", "20m"))
    rows = golden_rows(pipeline)
    assert len(view.time_windows.tumbling()) == 3
    expected = each_by_itself(spark, pipeline, view, rows)
    assert in_order(all_at_once(spark, pipeline, view, rows)) == in_order(expected)


def test_late_rows_are_looked_for_once_and_found_for_each_window_when_windows_overlap(
    spark: Any, monkeypatch: pytest.MonkeyPatch, golden_rows: Callable[[Pipeline], Any]
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.reconciliation import view_parts
    from spark_jobs.views.aggregate import PART
    from spark_jobs.views.windows import window_of

    pipeline = load_pipeline("nest_cameras")
    view = replace(pipeline.views[0], windows=TimeWindow("1h", "20m"))
    flags = {
        "tidemark_reached": F.lit(True),
        "tidemark_inside": F.lit(True),
        view_parts.CLOSED_TOPIC_ID: F.lit(""),
    }
    rows = golden_rows(pipeline).drop(PART).withColumns(flags)
    every = rows.select(window_of(view.time_windows).alias("window")).select("window.*")
    windows = view_parts._windows_of(every)
    closed = windows[len(windows) // 2][1]
    within, asked = OffsetRange(TopicPartition("golden", 0), 0, 10_000), []

    def late_bounds_within(*arguments: object) -> list[LateBound]:
        asked.append(arguments)
        return [LateBound(within, closed, closed, closed)]

    monkeypatch.setattr(view_parts.evidence, "late_bounds_within", late_bounds_within)
    batch = CommittedBatch("speed", 7, 1, closed, closed)
    monkeypatch.setattr(view_parts.micro_batches, "last_batch", lambda *_: batch)
    monkeypatch.setattr(view_parts.Meeting, "_reached_rows", lambda *_: rows)
    run: Any = SimpleNamespace(spark=spark, pipeline=pipeline)
    replayed: Any = SimpleNamespace(records=0)
    meeting = view_parts.Meeting(run, view, SpeedPosition({}, "speed", 7), replayed)
    late = meeting.parts(windows).late
    ends = [(row[0], row[1]) for row in every.groupBy("end").count().collect() if utc(row[0]) <= closed]
    assert sorted(ends) == sorted((row[0], row[1]) for row in late.groupBy("tidemark_window_end").count().collect())
    assert len(ends) > 1
    assert len(asked) == 1


def test_window_is_left_out_when_python_cannot_hold_it(spark: Any) -> None:
    """As of a row that landed before event times had bounds: it must not keep its interval from being compared."""
    from spark_jobs.reconciliation.view_parts import _windows_of

    frame = spark.sql(
        "SELECT start, start + INTERVAL 1 HOUR AS end FROM VALUES (TIMESTAMP '9999-12-31 23:00:00'), "
        "(TIMESTAMP '2026-11-20 05:00:00'), (NULL) AS t(start)"
    )
    assert _windows_of(frame) == [(datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))]


def test_rows_are_parted_when_the_archive_s_columns_have_names_that_begin_with_underscores(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.reconciliation import view_parts
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.views.aggregate import PART

    names = ("_inside", "_reached", "_topic", "_partition", "_from", "_until", "_end", "_window_end", "_part")
    tp, hour = TopicPartition("t", 0), (datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))
    columns = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, event_time TIMESTAMP"
    own = ", ".join(f"{name} STRING" for name in (*names, view_parts.CLOSED_TOPIC_ID))
    rows = frame_of(spark, [("t", 0, at, hour[0], *names, "") for at in (0, 2, 3, 5)], f"{columns}, {own}")
    late = LateBound(OffsetRange(tp, 0, 2), hour[1], hour[1], hour[1])
    monkeypatch.setattr(view_parts, "read_archived_by_event_time", lambda *_: rows)
    monkeypatch.setattr(view_parts, "closed", lambda _: ())
    pipeline = load_pipeline("nest_cameras")
    pinned = SimpleNamespace(ranges=[OffsetRange(tp, 0, 3), OffsetRange(tp, 5, 6)])
    run: Any = SimpleNamespace(spark=spark, pipeline=pipeline, pinned=pinned, damaged="refuse")
    position: Any = SimpleNamespace(offsets={tp: 4})
    meeting = view_parts.Meeting(run, pipeline.views[0], position, Replayed(rows, 0, ""))
    parted = meeting._parted(meeting._reached_rows([hour]), TimeWindow("1h"), [late])
    found = {row["kafka_offset"]: (row[PART], *(row[name] for name in names)) for row in parted.collect()}
    assert found == {
        0: ("late", *names),
        2: ("inside", *names),
        3: ("elsewhere", *names),
        5: ("beyond", *names),
    }
    assert meeting.dropped_by(parted.where(f"{PART} = 'late'")) == {hour[1]: (hour[1], hour[1])}
