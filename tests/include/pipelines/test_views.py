"""What the declaration of a view refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.doctor.examine import closed_early
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, CompactedTopic, EventTimeWithin, Threshold, TimeWindow, Top
from tests.support.shipped import SHIPPED

VIEW = load_pipeline("nest_cameras").views[0]


@pytest.mark.parametrize("kind", ["DOUBLE", "float", "STRING"])
def test_measure_is_refused_when_its_sum_depends_on_the_order_of_its_parts(kind: str) -> None:
    with pytest.raises(UsageError, match=f"measure count of the view hourly_counts is {kind.upper()}: .*DECIMAL"):
        replace(VIEW, columns=VIEW.columns.replace("count BIGINT", f"count {kind}"))


@pytest.mark.parametrize("name", ["key", "start", "end", "side", "version", "interval"])
def test_measure_is_refused_when_tidemark_has_a_column_of_its_name(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"column '{name}' of the view hourly_counts is Tidemark's own — call it {name}_"
    ):
        replace(VIEW, measures=(name,), columns=VIEW.columns.replace("count BIGINT", f"{name} BIGINT"))


def test_measure_may_be_called_start_when_its_view_has_no_window() -> None:
    declared = replace(TOTAL, measures=("start",), columns=TOTAL.columns.replace(f"{TOTAL.measures[0]} ", "start "))
    assert declared.measures == ("start",)


def test_key_has_any_name_but_that_of_the_partition_when_it_is_declared() -> None:
    free = replace(VIEW, key=("version", "window"), columns=VIEW.columns.replace("zip_code", "version"))
    assert free.plain_key == ("version",)
    with pytest.raises(UsageError, match="column 'interval' of the view hourly_counts is Tidemark's own"):
        replace(VIEW, key=("interval", "window"), columns=VIEW.columns.replace("zip_code", "interval"))


def test_measure_is_refused_when_no_column_declares_it() -> None:
    with pytest.raises(UsageError, match="measure sum of the view hourly_counts is not among its columns"):
        replace(VIEW, measures=("sum",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measures": ()}, "the view hourly_counts has no measure"),
        ({"key": ("zip_code", "window", "zip_code")}, "name zip_code more than once"),
        ({"key": ("zip_code", "window", "count")}, "name count more than once"),
        ({"measures": ("count", "count")}, "name count more than once"),
        (
            {"key": ("Window_Start", "window"), "columns": VIEW.columns.replace("zip_code", "Window_Start")},
            "column 'Window_Start' of the view hourly_counts has the name of a column that its table has for the wind",
        ),
        (
            {"measures": ("window_end",), "columns": VIEW.columns.replace("count", "window_end")},
            "column 'window_end' of the view hourly_counts",
        ),
    ],
)
def test_view_is_refused_when_its_table_would_have_a_column_twice_or_no_number(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        replace(VIEW, **changes)


TOTAL = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
WINDOWED = load_pipeline("isp_hits").views[0]


def test_view_is_refused_when_it_has_no_key() -> None:
    with pytest.raises(UsageError, match="the view zip_totals has no key column"):
        replace(TOTAL, key=(), columns="hits BIGINT")


def test_column_is_refused_when_it_is_neither_of_the_key_nor_a_measure() -> None:
    with pytest.raises(UsageError, match="column n of the view hourly_counts is neither of its key nor a measure"):
        replace(VIEW, columns=f"{VIEW.columns}, n BIGINT")


@pytest.mark.parametrize("kind", ["MAP<STRING, STRING>", "STRUCT<a: ARRAY<MAP<STRING, INT>>>"])
def test_key_is_refused_when_rows_cannot_be_ordered_by_it(kind: str) -> None:
    with pytest.raises(UsageError, match=r"column zip_code of the view hourly_counts has a MAP"):
        replace(VIEW, columns=VIEW.columns.replace("zip_code STRING", f"zip_code {kind}"))


@pytest.mark.parametrize(
    "kind",
    [
        "STRUCT<end: TIMESTAMP, start: TIMESTAMP>",
        "STRUCT<from: TIMESTAMP, to: TIMESTAMP>",
        "STRUCT<start: TIMESTAMP>",
        "STRUCT<start: TIMESTAMP_NTZ, end: TIMESTAMP_NTZ>",
        "ARRAY<TIMESTAMP>",
        "STRING",
    ],
)
def test_window_is_refused_when_its_column_is_declared_as_another_type(kind: str) -> None:
    with pytest.raises(UsageError, match="the window window of the view hourly_counts") as refused:
        replace(VIEW, columns=f"zip_code STRING, window {kind}, count BIGINT")
    assert refused.value.remedy == "declare window STRUCT<start: TIMESTAMP, end: TIMESTAMP>"


def test_window_is_accepted_when_its_type_is_written_otherwise() -> None:
    columns = "zip_code STRING, window struct<`start`: timestamp COMMENT 'of it', end timestamp_ltz>, count BIGINT"
    assert replace(VIEW, columns=columns).windows


@pytest.mark.parametrize("topic", ["my topic!", "", "t" * 250])
def test_topic_of_a_view_is_refused_when_kafka_cannot_have_it(topic: str) -> None:
    with pytest.raises(UsageError, match="is not a Kafka topic name"):
        CompactedTopic(topic)


@pytest.mark.parametrize(("slide", "start"), [("5m", "7m"), ("5m", "5m"), ("", "10m")])
def test_windows_are_refused_when_they_are_shifted_by_more_than_they_are_apart(slide: str, start: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be shifted by {start}"):
        TimeWindow("10m", slide=slide, start=start)


def test_threshold_is_refused_when_its_measure_is_none_of_the_view() -> None:
    with pytest.raises(UsageError, match="'zz', which is no measure of the view 'hourly_counts' — one of: count"):
        replace(load_pipeline("nest_cameras"), reports=(Threshold("Busy", "hourly_counts", "zz", above=1),))


@pytest.mark.parametrize("name", ["from", "To", "batch_view", "speed_view"])
def test_threshold_is_refused_when_a_key_column_has_the_name_of_one_of_its_own(name: str) -> None:
    view = replace(VIEW, key=(name, "window"), columns=VIEW.columns.replace("zip_code", name))
    with pytest.raises(UsageError, match=f"'Busy' has a column '{name}' of its own, .* the view 'hourly_counts'"):
        replace(load_pipeline("nest_cameras"), views=(view,), reports=(Threshold("Busy", view.name, "count", 1),))


def test_threshold_over_a_key_column_from_is_accepted_when_its_view_has_no_window() -> None:
    declared = load_pipeline("isp_hits")
    view = replace(TOTAL, key=("from",), columns=TOTAL.columns.replace("zipcode", "from"))
    report = Threshold("Busy", view.name, view.measures[0], above=1)
    assert replace(declared, views=(view,), reports=(report,)).reports == (report,)


@pytest.mark.parametrize("missing", ["zip_code", "window"])
def test_key_is_refused_when_no_column_declares_it(missing: str) -> None:
    said = f"the key column {missing} of the view hourly_counts is not among its columns: "
    with pytest.raises(UsageError, match=said):
        replace(VIEW, columns=VIEW.columns.replace(f"{missing} ", f"{missing}_ "))


@pytest.mark.parametrize("kind", ["INT", "decimal(19, 2)", "BIGINT NOT NULL"])
def test_measure_is_accepted_when_it_is_summed_exactly(kind: str) -> None:
    declared = replace(VIEW, columns=VIEW.columns.replace("count BIGINT", f"count {kind}"))
    assert declared.measures == ("count",)


@pytest.mark.parametrize(
    ("view", "changes", "said"),
    [
        (TOTAL, {"max_keys": 0}, "its keys are kept for ever"),
        (TOTAL, {"speed": CompactedTopic("a-topic", watermark="1h")}, "no row of it is late"),
        (TOTAL, {"window": "window"}, "has the window window"),
        (WINDOWED, {"max_keys": 5}, "has windows, which end"),
        (WINDOWED, {"speed": CompactedTopic("a-topic")}, "has windows"),
        (WINDOWED, {"window": "span"}, "is not in its key"),
    ],
)
def test_limit_of_keys_is_required_when_a_view_is_a_total_and_a_watermark_when_it_has_windows(
    view: AdditiveView, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        replace(view, **changes)


def test_top_report_is_refused_when_its_view_has_no_windows() -> None:
    top = Top("Largest", view="zip_totals", by=("zipcode",), measure="hits")
    with pytest.raises(UsageError, match="shows windows, and the view 'zip_totals' has none"):
        replace(load_pipeline("isp_hits"), reports=(top,))


@pytest.mark.parametrize("name", SHIPPED)
def test_something_is_shown_live_when_a_pipeline_is_shipped(name: str) -> None:
    pipeline = load_pipeline(name)
    # A declared report is checked against its view.
    assert replace(pipeline, reports=(pipeline.top_report,)).top_report == pipeline.top_report


def test_nothing_is_shown_live_when_a_pipeline_has_no_windows() -> None:
    pipeline = load_pipeline("isp_hits")
    totals = tuple(view for view in pipeline.views if view.is_total)
    with pytest.raises(UsageError, match="isp_hits has no view with windows"):
        _ = replace(pipeline, views=totals, reports=()).top_report


def test_mode_is_refused_when_a_view_does_not_know_it() -> None:
    mode: Any = "append"
    with pytest.raises(UsageError, match="view hourly_counts: mode='append' is not known — one of: update, complete"):
        replace(VIEW, mode=mode)


@pytest.mark.parametrize("name", SHIPPED)
def test_no_event_closes_the_window_in_which_it_arrives_when_a_pipeline_is_shipped(name: str) -> None:
    assert list(closed_early(load_pipeline(name))) == []


def test_doctor_has_a_note_of_a_view_when_events_may_lie_further_ahead_than_it_waits() -> None:
    declared = load_pipeline("nest_cameras")
    rules = (*declared.archive.rules[:-1], EventTimeWithin(behind="1d", ahead="90m"))
    [note] = closed_early(replace(declared, archive=replace(declared.archive, rules=rules)))
    assert note.ok
    assert note.notice
    assert note.what.startswith("nest_cameras: an event may lie 90m ahead, and the view hourly_counts waits 1h")
    complete = replace(VIEW, mode="complete")
    assert not [*closed_early(replace(declared, archive=replace(declared.archive, rules=rules), views=(complete,)))]
