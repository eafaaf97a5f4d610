"""The largest keys of a window, as they are written for the command and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from include import lake
from include.cli.live import render
from include.ledger.archive import landing_files, removal
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch
from include.ledger.quarantine import RecordKey
from include.monitor import exact_json
from include.monitor.live_page import clean_counts
from include.pipelines import load_pipeline
from spark_jobs.live.landing_source import LandingReader
from spark_jobs.live.top import LiveTop
from tests.conftest import Home, iso
from tests.support.committed import DAY, commit, register
from tests.support.erased_records import being_erased

WINDOW = "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT"
START = datetime(2026, 11, 20, 5, tzinfo=UTC)
SINCE = iso(START)


def test_decimals_are_written_and_shown_with_all_digits_when_the_measure_is_one(tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    report = replace(pipeline.top_report, by=("zipcode",))
    top = LiveTop(pipeline, report, 1, tmp_path / "top.json", SINCE)
    amounts: dict[tuple[str, ...], Decimal] = {
        ("94103",): Decimal("123456789012345.6789"),
        ("10001",): Decimal("-0.1000"),
    }
    top.counts[START, START + timedelta(minutes=10)] = dict(amounts)
    top.show()
    text = top.result.read_text()
    assert '"rows": [["94103", 123456789012345.6789], ["10001", -0.1000]]' in text
    shown = exact_json.loads(text)
    assert shown["windows"][0]["total"] == Decimal("123456789012345.5789")
    assert "123456789012345.6789" in "".join(map(str, render(shown).renderables[1].columns[1].cells))
    told = json.loads(json.dumps(clean_counts(shown)))
    assert told["windows"][0]["rows"][0] == ["94103", "123456789012345.6789"]


def test_sums_and_order_have_all_digits_when_decimals_have_more_than_python_s_own_28(tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    top = LiveTop(pipeline, replace(pipeline.top_report, by=("zipcode",)), 1, tmp_path / "top.json", SINCE)
    large = 10**35
    amounts: dict[tuple[str, ...], Decimal] = {("a",): Decimal(large + 1), ("b",): Decimal(large + 2)}
    top.counts[START, START + timedelta(minutes=10)] = dict(amounts)
    (window,) = top.as_json()["windows"]
    assert [key for key, _ in window["rows"]] == ["b", "a"]
    assert window["total"] == Decimal(2 * large + 3)


def test_window_is_told_as_read_in_part_when_it_began_before_the_first_event_that_is_read(tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    report = replace(pipeline.top_report, by=("zipcode",))
    top = LiveTop(pipeline, report, 2, tmp_path / "top.json", iso(START + timedelta(minutes=7)))
    for minutes in (5, 10):
        at = START + timedelta(minutes=minutes)
        top.counts[at, at + timedelta(minutes=10)] = {("94103",): 3}
    shown = top.as_json()
    assert shown["since"] == "2026-11-20T05:07:00Z"
    whole, part = (str(table.title) for table in render(shown).renderables[1:3])
    assert whole == "2026-11-20T05:10:00Z to 2026-11-20T05:20:00Z: 3 in all, 1 different"
    read_from = ", read from 2026-11-20T05:07:00Z on"
    assert part == f"2026-11-20T05:05:00Z to 2026-11-20T05:15:00Z{read_from}: 3 in all, 1 different"


def test_null_sum_is_the_smallest_value_and_shown_as_none(tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    top = LiveTop(pipeline, replace(pipeline.top_report, by=("zipcode",)), 1, tmp_path / "top.json", SINCE)
    counted: dict[tuple[str | None, ...], int | None] = {("10001",): None, (None,): 3, ("94103",): 0}
    top.counts[START, START + timedelta(minutes=10)] = dict(counted)
    top.show()
    shown = exact_json.loads(top.result.read_text())
    (window,) = shown["windows"]
    assert (window["total"], window["keys"]) == (3, 3)
    assert window["rows"] == [[None, 3], ["94103", 0], ["10001", None]]
    assert list(render(shown).renderables[1].columns[1].cells) == ["3", "0", "–"]
    assert clean_counts(shown)["windows"][0]["rows"] == window["rows"]


def test_equal_counts_are_in_the_order_of_their_keys_when_these_are_numbers(tmp_path: Path) -> None:
    pipeline = load_pipeline("gps_positions")
    top = LiveTop(pipeline, pipeline.top_report, 1, tmp_path / "top.json", SINCE)
    counted: dict[tuple[int | None, ...], int] = dict.fromkeys([(device,) for device in (*range(24, 0, -1), None)], 3)
    top.counts[START, START + timedelta(hours=1)] = dict(counted)
    (window,) = top.as_json()["windows"]
    assert [device for device, _ in window["rows"]] == [None, *range(1, 10)]


def test_user_has_one_place_when_some_of_the_edits_were_marked_as_a_bot_s(tmp_path: Path) -> None:
    pipeline = load_pipeline("wiki_changes")
    assert pipeline.views[0].plain_key == ("user", "bot")
    top = LiveTop(pipeline, pipeline.top_report, 1, tmp_path / "top.json", SINCE)
    top.counts[START, START + timedelta(minutes=10)] = {("ada", True): 3, ("ada", False): 2, ("bob", False): 4}
    top.show()
    (window,) = exact_json.loads(top.result.read_text())["windows"]
    assert window["rows"] == [["ada", 5], ["bob", 4]]


def test_null_sum_is_left_out_when_keys_are_shown_together(tmp_path: Path) -> None:
    pipeline = load_pipeline("auction_bids")
    report = replace(pipeline.top_report, by=("category",), measure="bids")
    top = LiveTop(pipeline, report, 1, tmp_path / "top.json", SINCE)
    counted: dict[tuple[str, ...], int | None] = {
        ("art", "EUR"): None,
        ("art", "CHF"): 2,
        ("books", "EUR"): None,
        ("books", "CHF"): None,
    }
    top.counts[START, START + timedelta(hours=1)] = dict(counted)
    (window,) = top.as_json()["windows"]
    assert (window["total"], window["rows"]) == (2, [["art", 2], ["books", None]])


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "part", "shown"),
    [("ARRAY<STRING>", ["a", None], '["a",null]'), ("STRUCT<of: ARRAY<INT>>", ([1, 2],), '{"of":[1,2]}')],
)
def test_key_is_counted_when_its_parts_are_arrays(spark: Any, tmp_path: Path, kind: str, part: Any, shown: str) -> None:
    pipeline = load_pipeline("isp_hits")
    report = replace(pipeline.top_report, by=("zipcode",))
    top = LiveTop(pipeline, report, 1, tmp_path / "top.json", SINCE)
    rows = [(part, (START, START + timedelta(minutes=10)), 7)]
    for number in range(2):
        top.keep(spark.createDataFrame(rows, f"zipcode {kind}, {WINDOW}"), number)
    assert [each["rows"] for each in top.as_json()["windows"]] == [[[shown, 7]]]


@pytest.mark.spark
def test_counts_that_are_being_shown_do_not_change_when_the_next_micro_batch_comes(spark: Any, tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    top = LiveTop(pipeline, pipeline.top_report, 2, tmp_path / "top.json", SINCE)
    at, later = ((start, start + timedelta(minutes=10)) for start in (START, START + timedelta(minutes=5)))
    top.keep(spark.createDataFrame([("10001", at, 1)], f"zipcode STRING, {WINDOW}"), 0)
    shown = top.counts
    changed = [("10001", at, 2), ("94103", at, 3), ("10001", later, 4)]
    top.keep(spark.createDataFrame(changed, f"zipcode STRING, {WINDOW}"), 1)
    assert shown == {at: {("10001",): 1}}
    assert top.counts == {at: {("10001",): 2, ("94103",): 3}, later: {("10001",): 4}}


@pytest.mark.spark
def test_present_window_is_shown_when_a_later_one_has_come_by_a_clock_that_is_ahead(spark: Any, tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    top = LiveTop(pipeline, pipeline.top_report, 1, tmp_path / "top.json", SINCE)
    present, ahead = datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC) + timedelta(days=1)
    before = present - timedelta(minutes=5)

    def keep(number: int, *counted: tuple[str, datetime, int]) -> list[list[Any]]:
        rows = [(zipcode, (at, at + timedelta(minutes=10)), hits) for zipcode, at, hits in counted]
        top.keep(spark.createDataFrame(rows, f"zipcode STRING, {WINDOW}"), number)
        return [window["rows"] for window in top.as_json()["windows"]]

    # A topic of later windows alone shows the newest.
    assert keep(0, ("fast", ahead, 1), ("fast", ahead + timedelta(hours=1), 2)) == [[["fast", 2]]]
    assert keep(1, ("10001", before, 8), ("94103", present, 199)) == [[["94103", 199]]]
    assert keep(2, ("94103", present, 200), ("fast", ahead, 3)) == [[["94103", 200]]]
    assert top.as_json()["ahead"] == 2
    assert "windows that have not begun: 2" in str(render(top.as_json()).renderables[-1])
    # They are whole when they begin.
    assert sorted(counts["fast",] for at, counts in top.counts.items() if at[0] >= ahead) == [2, 3]


@pytest.mark.spark
@pytest.mark.parametrize(("name", "drops"), [("by_zip", True), ("by_isp", False)])
def test_late_rows_are_left_out_when_the_view_leaves_them_out(
    spark: Any, tmp_path: Path, name: str, drops: bool
) -> None:
    pipeline = load_pipeline("isp_hits")
    view = next(each for each in pipeline.views if each.name == name)
    report = replace(pipeline.top_report, view=name, by=view.plain_key)
    top = LiveTop(pipeline, report, 1, tmp_path / "top.json", SINCE)
    plan = top.aggregates(spark)._jdf.queryExecution().analyzed().toString()
    assert ("EventTimeWatermark" in plan) == drops


@pytest.mark.services
def test_row_is_not_read_when_its_record_is_being_erased_and_its_file_is_not_written_again_yet(postgres: Home) -> None:
    name = "hits_to_erase"
    batch = commit(name, 0, 0, 5, archived=5)
    (file,) = landing_files.archived_between(name, 0, batch)
    _, place = lake.filesystem(lake.uri(file.path))
    where = {"kafka_topic": ["events"] * 5, "kafka_partition": pa.array([0] * 5, pa.int32())}
    pq.write_table(pa.table({**where, "kafka_offset": range(5), "former": list("abcde")}), place)
    schema = pa.schema({"kafka_topic": pa.string(), "kafka_partition": pa.int32(), "kafka_offset": pa.int64()})
    reader = LandingReader(name, iso(DAY), 10, schema.append(pa.field("now", pa.string())), {"former": "now"})

    def read() -> list[str]:
        (part,) = reader.partitions({"micro_batch": 0}, {"micro_batch": batch})
        return [each for rows in reader.read(part) for each in rows.column("now").to_pylist()]

    assert read() == list("abcde")
    with being_erased(name, RecordKey("events", "id", 0, 1), RecordKey("events", "another id", 0, 2)):
        assert read() == list("acde")


@pytest.mark.services
@pytest.mark.parametrize("latest", [None, datetime(2099, 1, 1, tzinfo=UTC)], ids=["no event time", "far in the future"])
def test_newest_files_are_read_when_an_old_one_that_may_have_later_events_was_kept_and_those_after_it_removed(
    postgres: Home, latest: datetime | None
) -> None:
    name = f"hits_kept_{latest is None}"
    batches = [commit(name, number, 10 * number, 10 * number + 10, archived=5) for number in range(5)]
    with session() as ledger:
        for file in ledger.scalars(select(LandingFileRow).where(LandingFileRow.micro_batch_id.in_(batches))):
            at = DAY + batches.index(file.micro_batch_id) * timedelta(hours=1)
            file.event_time_min, file.event_time_max = at, at
            if file.micro_batch_id == batches[0]:
                file.event_time_min, file.event_time_max = latest and at, latest
            ledger.get_one(MicroBatch, file.micro_batch_id).rows = 5
    # Nobody has built the first hour.
    for number in (1, 2, 3):
        register(name, number, 10 * number, 10 * number + 10)
    assert removal.mark_removed(name, batches) == set(batches[1:4])
    reader = LandingReader(name, iso(DAY + timedelta(hours=4)), 10, pa.schema([]))
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert end == {"micro_batch": batches[4]}, "removed files count as no rows"
    assert [part.path.split("/")[-3] for part in reader.partitions(begin, end)] == ["0", "4"]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
