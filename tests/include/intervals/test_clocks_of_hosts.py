"""Boundaries are judged by the ledger's clock: the host's, which each run may have another one of, changes none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from include import kafka
from include.errors import UsageError
from include.intervals import boundaries
from include.intervals.boundaries import asked_interval, read_log
from include.kafka.timestamps import Boundary, RecordTime, find_boundary
from include.offsets import TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.times import Interval

WIKI = load_pipeline("wiki_changes")
(TOPIC,) = WIKI.source.subscribe
TP = TopicPartition(TOPIC, 0)


@pytest.mark.parametrize("behind", [timedelta(0), timedelta(minutes=3)])
def test_interval_that_has_passed_by_the_ledger_s_clock_is_taken_when_the_clock_of_the_host_is_behind(
    monkeypatch: pytest.MonkeyPatch, behind: timedelta
) -> None:
    end = WIKI.schedule.floor(datetime.now(UTC))
    monkeypatch.setattr(boundaries, "datetime", SimpleNamespace(now=lambda _: end + timedelta(seconds=9) - behind))
    monkeypatch.setattr(boundaries, "clock", lambda: end + timedelta(seconds=9))
    monkeypatch.setattr(boundaries, "_is_of_another_schedule", lambda *_: False)
    begin = end - WIKI.schedule.every
    assert asked_interval(WIKI, begin, end) == Interval(begin, end)
    with pytest.raises(UsageError, match="has not passed yet"):
        asked_interval(WIKI, end, end + WIKI.schedule.every)


@pytest.mark.parametrize("behind", [timedelta(0), timedelta(hours=3), timedelta(hours=-3)])
def test_interval_ends_at_the_same_record_when_the_clock_of_the_host_is_wrong(
    monkeypatch: pytest.MonkeyPatch, behind: timedelta
) -> None:
    now = (datetime.now(UTC) + behind).replace(microsecond=0)
    milliseconds = int(now.timestamp()) * 1000
    answers: Mapping[str, object] = {
        "describe_source": {TOPIC: TopicIdentity(TOPIC, "id", 1)},
        "stored_topics": {TOPIC: "id"},
        "positions": {},
        "topics_that_left": frozenset(),
        "commit_of": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(boundaries, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(boundaries, "clock", lambda: now, raising=False)
    monkeypatch.setattr(kafka, "offset_bounds", lambda *_: {TP: (0, 240)})
    # A record a minute until now, and after them some that are more than an hour ahead of now.
    seconds = [60 * (number - 179) for number in range(180)] + [2 * 3600] * 60
    records = [RecordTime(offset, milliseconds + each * 1000) for offset, each in enumerate(seconds)]
    earlier, later = milliseconds - 9 * 60_000, milliseconds + 60_000
    assert find_boundary(TP, records, earlier, 240, read_log(WIKI).rule) == Boundary(170)
    assert find_boundary(TP, records, later, 240, read_log(WIKI).rule) == Boundary(240, 60, records[180])
