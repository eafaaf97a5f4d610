"""Where a follower goes on, and the file of events that Kafka refused, without services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.pipelines import load_pipeline
from include.producing.event_stream import EventStream
from include.producing.position import Reached, RefusedEvent, StreamPosition
from include.producing.refused_position import RefusedPosition, parse_go_on
from include.times import format_time
from tests.conftest import SetSettings

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.mark.parametrize(
    ("days_ago", "expected"),
    [(7, NOW - timedelta(minutes=5)), (0, NOW)],
    ids=["before the position", "after the position"],
)
def test_no_event_before_the_position_comes_again_when_a_gap_is_accepted(days_ago: int, expected: datetime) -> None:
    stream = EventStream("http://127.0.0.1:1/", "the last id", pytest.fail)
    go_on = parse_go_on(format_time(NOW - timedelta(days=days_ago)))
    refused = RefusedPosition(load_pipeline("wiki_changes"), go_on)
    told = refused.go_past(stream, Reached("the last id", NOW - timedelta(minutes=5)), "400 Bad Request")
    assert stream.since == format_time(expected)
    assert f"going on with the events since {format_time(expected)}" in told


@pytest.fixture
def position(tmp_path: Path, set_settings: SetSettings) -> Iterator[StreamPosition]:
    set_settings(TIDEMARK_HOME=str(tmp_path))
    found = StreamPosition("wiki_changes", "http://stream")
    with found.locked():
        yield found


@pytest.mark.parametrize("whole", ["", '{"event_id": "6"}\n'])
def test_each_refused_event_has_a_line_of_its_own_when_the_disk_was_full(position: StreamPosition, whole: str) -> None:
    half = '{"event_id": "7", "reason": "too large", "data": "abc'
    position.refused_path.write_text(whole + half)
    for event in ("7", "8"):
        position.append_refused(RefusedEvent(event, "too large", "\ud800é"))
    lines = position.refused_path.read_text().removeprefix(whole).splitlines()
    assert lines[0] == half
    assert [json.loads(line) for line in lines[1:]] == [
        {"event_id": event, "reason": "too large", "data": "\ud800é"} for event in ("7", "8")
    ]


def test_file_of_refused_events_has_no_empty_line_when_it_is_whole(position: StreamPosition) -> None:
    for event in ("1", "2"):
        position.append_refused(RefusedEvent(event, "", ""))
    assert [json.loads(line)["event_id"] for line in position.refused_path.read_text().splitlines()] == ["1", "2"]
    assert position.refused_path.stat().st_mode & 0o077 == 0
