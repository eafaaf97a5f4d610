"""Notifications of what a report lists newly: real broker and ledger."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from include.intervals.reporting import notifications
from include.intervals.reporting.notifications import fitting, listed_of, notify
from include.ledger.intervals import attempts
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import OutageRow
from include.ledger.streams import outages
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing, Pipeline
from tests.conftest import Home
from tests.support import audit
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register

pytestmark = pytest.mark.services


def test_messages_have_ids_of_their_own_when_two_listings_with_equal_keys_share_a_topic(in_process: Home) -> None:
    topic = f"told-{os.getpid()}"
    listings = [
        Listing(title, "found", ("device", "celsius"), key=("device",), notify=topic) for title in ("Slow", "Hot")
    ]
    pipeline = replace(load_pipeline("nest_cameras"), name=f"told_{os.getpid()}", reports=tuple(listings))
    attempt = begin_attempt(pipeline.name, hour())
    pinned = attempts.load_attempt(attempt).pinned
    row = {"device": "a", "id": 7, "interval": "mine", "celsius": 80}
    listed = tuple(listed_of(listing, [row]) for listing in listings)
    register(attempt, note_build(attempt, listed=listed))

    assert notify(pipeline, pinned) == 2
    assert notify(pipeline, pinned) == 0
    bodies = [json.loads(record.value) for record in audit.read_topic(in_process.kafka, topic).values()]
    start = f"{pipeline.name}/2026-11-20T05:00:00Z"
    assert {body["id"] for body in bodies} == {f'{start}/{title}/{{"device": "a"}}' for title in ("Slow", "Hot")}
    assert {(body["interval"], body["celsius"]) for body in bodies} == {("2026-11-20T05:00:00Z", 80)}


def renamed(pipeline: Pipeline, now: str, before: str, key: tuple[str, ...]) -> Pipeline:
    """The pipeline with the archive's column and the report's by another name; `key` has the report's other columns."""
    archive, report = pipeline.archive, pipeline.reports[0]
    assert isinstance(report, Listing)
    columns = archive.columns.replace(f"{before} STRING", f"{now} STRING", 1)
    return replace(
        pipeline,
        archive=replace(archive, columns=columns, subject=now, rules=(), renamed={now: before}),
        reports=(replace(report, columns=(now, *key, "celsius"), key=(now, *key)),),
    )


def test_nothing_is_told_again_when_the_key_s_column_is_renamed_and_intervals_are_built_again(
    in_process: Home,
) -> None:
    name = f"renamed_{os.getpid()}"
    listing = Listing("Hot", "found", ("device_id", "celsius"), key=("device_id",), notify=f"renamed-{os.getpid()}")
    first = replace(load_pipeline("nest_cameras"), name=name, reports=(listing,))
    second = renamed(first, "camera_id", "device_id", ())
    back = renamed(second, "device_id", "camera_id", ())

    def listed(pipeline: Pipeline, number: int, *devices: str) -> PinnedInterval:
        (report,) = pipeline.reports
        assert isinstance(report, Listing)
        rows = [{report.key[0]: each, "celsius": 80} for each in devices]
        attempt = build_and_register(name, hour(number), listed=(listed_of(report, rows),))
        return attempts.load_attempt(attempt).pinned

    hours = [listed(first, 0, "a"), listed(first, 1, "a", "b")]
    assert [notify(first, each) for each in hours] == [1, 1]
    for pipeline in (second, back):
        # In any order; the last one lists another, too.
        listed(pipeline, 1, "a", "b")
        assert notify(pipeline, hours[1]) == 0
        listed(pipeline, 0, "a")
        assert notify(pipeline, hours[0]) == 0
    listed(second, 1, "a", "b", "c")
    assert notify(second, hours[1]) == 1
    # Of the next interval, too, what the one before lists by another name is not new.
    assert notify(back, listed(back, 2, "b", "c", "d")) == 1


@pytest.mark.parametrize(
    "changed", [{"title": "Hotter"}, {"key": ("device", "room"), "columns": ("device", "room")}], ids=str
)
def test_only_the_newest_interval_tells_its_rows_when_the_listing_has_another_title_or_key(
    in_process: Home, changed: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    unique = f"{os.getpid()}_{zlib.crc32(request.node.name.encode())}"
    first = Listing("Hot", "found", ("device",), key=("device",), notify=f"changed-{unique}")
    later = replace(first, **changed)
    pipeline = replace(load_pipeline("nest_cameras"), name=f"changed_{unique}")

    def listed(listing: Listing, number: int) -> PinnedInterval:
        attempt = begin_attempt(pipeline.name, hour(number))
        found = listed_of(listing, [{"device": each, "room": "hall"} for each in ("a", "b")])
        register(attempt, note_build(attempt, listed=(found,)))
        return attempts.load_attempt(attempt).pinned

    def told(listing: Listing, *pinned: PinnedInterval) -> list[int]:
        return [notify(replace(pipeline, reports=(listing,)), each) for each in pinned]

    assert [told(first, listed(first, number)) for number in range(3)] == [[2], [0], [0]]
    # An old hour is run again, and two come that are new, of which the second is registered before the first is told.
    assert told(later, listed(later, 1)) == [0]
    assert told(later, listed(later, 3), listed(later, 4)) == [2, 0]
    assert [told(later, listed(later, number)) for number in (3, 4, 2)] == [[0], [0], [0]]


def test_row_is_not_told_when_it_may_have_been_beyond_those_recorded_of_the_interval_before(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MOST", 2)
    listing = Listing("Hot", "found", ("device",), key=("device",), notify=f"many-{os.getpid()}")
    pipeline = replace(load_pipeline("nest_cameras"), name=f"many_{os.getpid()}", reports=(listing,))

    def told(number: int, *devices: int | None) -> int:
        attempt = begin_attempt(pipeline.name, hour(number))
        listed = listed_of(listing, [{"device": each} for each in devices])
        register(attempt, note_build(attempt, listed=(listed,)))
        return notify(pipeline, attempts.load_attempt(attempt).pinned)

    assert told(0, 2, 3) == 2
    # The second hour no longer lists 2, so the next one moves up.
    assert told(1, 3, 10) == 0
    assert told(2, None, 3) == 1
    assert told(3, 3) == 0
    # All rows of the fourth hour are recorded.
    assert told(4, 3, 11) == 1


def test_key_tells_its_columns_apart_when_one_has_the_name_that_another_had_before() -> None:
    listing = Listing("Hot", "found", ("device_id", "celsius"), key=("device_id",), notify="hot")
    pipeline = renamed(
        replace(load_pipeline("nest_cameras"), reports=(listing,)), "camera_id", "device_id", ("device_id",)
    )
    (report,) = pipeline.reports
    assert isinstance(report, Listing)
    assert pipeline.archive.former_in(report.key) == {}


def test_message_says_which_values_it_cut_when_it_was_larger_than_its_topic_takes() -> None:
    body = {"id": "x" * 300, "name": "é" * 2000, "tags": ["a" * 50] * 100, "note": "short", "count": 7}
    told = fitting(body, 1500)
    assert 750 < len(told) <= 1500
    read = json.loads(told)
    assert read["shortened"] == ["name", "tags"]
    assert {name: read[name] for name in ("id", "note", "count")} == {
        name: body[name] for name in ("id", "note", "count")
    }
    assert re.fullmatch("é{50,}…", read["name"])
    assert read["tags"].startswith('["aaa')
    # What escapes take more room than counts, too.
    assert len(fitting({"id": "x", "name": "\0" * 5000}, 1500)) <= 1500


def test_message_is_whole_when_it_fits() -> None:
    body = {"id": "x", "name": "é" * 700, "odd": "\ud800"}
    assert len(fitting(body, 1500)) < 1500
    assert json.loads(fitting(body, 1500)) == body


def test_others_are_told_when_the_text_of_one_is_too_large_for_a_message(in_process: Home) -> None:
    topic = f"large-{os.getpid()}"
    listing = Listing("Hot", "found", ("device", "name"), key=("device",), notify=topic)
    pipeline = replace(load_pipeline("nest_cameras"), name=f"large_{os.getpid()}", reports=(listing,))
    attempt = begin_attempt(pipeline.name, hour())
    pinned = attempts.load_attempt(attempt).pinned
    # With two bytes each the first one fits, as the record did that it came from.
    names = {"a": "é" * 400_000, "b": "é" * 1_500_000, "c": "c"}
    listed = listed_of(listing, [{"device": device, "name": name} for device, name in names.items()])
    register(attempt, note_build(attempt, listed=(listed,)))

    assert notify(pipeline, pinned) == 3
    assert notify(pipeline, pinned) == 0
    bodies = [json.loads(record.value) for record in audit.read_topic(in_process.kafka, topic).values()]
    told = {body["device"]: body for body in bodies}
    assert {device: body.get("shortened") for device, body in told.items()} == {"a": None, "b": ["name"], "c": None}
    assert told["a"]["name"] == names["a"]
    assert names["b"].startswith(told["b"]["name"].removesuffix("…"))


def test_outage_has_one_id_in_each_ledger_and_another_one_than_the_next() -> None:
    """Two installations may read one topic, or a new ledger may begin: its rows are numbered from 1 again."""

    def ids(number: int, offset: int, report: str = "Cameras offline", topic_id: str = "of-nest-logs") -> list[str]:
        begin = {
            "topic": "nest-logs",
            "topic_id": topic_id,
            "topic_partition": 0,
            "record_offset": offset,
            "element": 1,
        }
        end = {"end_topic": "nest-logs", "end_partition": 0, "end_offset": offset + 7, "end_element": 0, "end_row": {}}
        times = dict.fromkeys(("began_at", "ended_at"), datetime(2026, 11, 20, tzinfo=UTC))
        row = OutageRow(id=number, report=report, key="{}", row={}, **begin, **end, **times)
        nest = load_pipeline("nest_cameras")
        return [notifications._outage_message(nest, each)[1]["id"] for each in outages._untold(row)]

    assert ids(17, 5) == ids(4, 5)
    others = [ids(17, 5), ids(17, 6), ids(17, 5, report="Cameras gone"), ids(17, 5, topic_id="created-again")]
    assert len({each for outage in others for each in outage}) == 2 * len(others)
