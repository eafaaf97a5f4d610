"""Generated messages without services: when the topic is created, and what a pipeline without a generator is told."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include import kafka
from include.airflow import demo_run
from include.cli import demo
from include.errors import ServiceUnreachable, UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline, Threshold
from include.producing import follower, generate, messages
from include.producing.messages import nest_cameras
from include.times import parse_time, time_of
from tests.conftest import SetSettings
from tests.support.shipped import SHIPPED, UNUSED

THRESHOLDS = [
    pytest.param(name, report, id=report.title)
    for name in SHIPPED
    for report in load_pipeline(name).reports
    if isinstance(report, Threshold)
]
"""The shipped pipelines with their reports of what is above a limit."""


def test_topic_is_not_created_when_no_message_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(pipeline: Any) -> None:
        raise ServiceUnreachable("the schema registry does not answer")

    created: list[str] = []
    monkeypatch.setattr(generate, "_generator", unreachable)
    monkeypatch.setattr(kafka, "create_topic", lambda topic, partitions: created.append(topic))
    monkeypatch.setattr(kafka, "producer", lambda **_: pytest.fail("nothing is written"))
    with pytest.raises(ServiceUnreachable, match="schema registry"):
        generate.produce(load_pipeline("gps_positions"), events=3)
    assert created == []


@pytest.fixture
def with_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Pipeline]]:
    """Write a pipeline's generator, and return the pipeline."""
    monkeypatch.setattr(messages, "__path__", [*messages.__path__, str(tmp_path)])
    monkeypatch.setattr(kafka, "create_topic", lambda *_: pytest.fail("no topic is created"))

    def write(text: str) -> Pipeline:
        if text:
            (tmp_path / f"{UNUSED}.py").write_text(text)
        return replace(load_pipeline("isp_hits"), name=UNUSED)

    yield write
    sys.modules.pop(f"include.producing.messages.{UNUSED}", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not there"),
        ("def message(moment, rng): return None, b''", "has no function bad_messages"),
        ("import random", "has no function message"),
    ],
)
def test_file_is_named_with_its_functions_when_a_pipeline_has_no_generator(
    with_generator: Callable[[str], Pipeline], text: str, said: str
) -> None:
    pipeline = with_generator(text)
    for check in (lambda: generate.produce(pipeline, events=3), lambda: generate.check_producible(pipeline)):
        with pytest.raises(UsageError) as refused:
            check()
        assert refused.value.message == f"include/producing/messages/{pipeline.name}.py {said}"
        assert "message(moment, rng)" in refused.value.remedy
        assert "bad_messages(moment, rng)" in refused.value.remedy
        assert "or send records by other means" in refused.value.remedy


def test_module_that_a_generator_imports_is_named_when_it_is_missing(with_generator: Callable[[str], Pipeline]) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        generate.check_producible(with_generator("import no_such_package"))


def test_every_shipped_pipeline_has_a_generator_when_it_is_demonstrated() -> None:
    for name in SHIPPED:
        pipeline = load_pipeline(name)
        generate.check_producible(pipeline)
        assert messages.module_of(pipeline) is not None


@pytest.mark.parametrize("text", ["", "def message(moment, rng): return None, b''"])
def test_pipeline_cannot_follow_a_stream_when_nothing_describes_its_events(
    with_generator: Callable[[str], Pipeline], text: str
) -> None:
    pipeline = with_generator(text)
    with pytest.raises(UsageError, match=f"{pipeline.name} cannot follow an event stream"):
        follower.follow(pipeline, "http://127.0.0.1:1/", until=1, seconds=None, tell=lambda _: None)


def generated(name: str, events: int, **changes: Any) -> list[dict[str, Any]]:
    """Valid messages as the demo produces them, from the beginning of an hour on."""
    arguments = {"seed": 1, "bad_fraction": 0.0, "start": datetime(2026, 11, 20, 5, tzinfo=UTC), **changes}
    found = generate.messages(load_pipeline(name), events=events, span=timedelta(hours=3), **arguments)
    return [json.loads(value or b"") for _, _, value, reason in found if not reason]


def test_camera_stays_in_a_state_since_its_last_change_when_messages_are_generated() -> None:
    states = sorted(
        (camera["device_id"], camera["last_event"]["start_time"], camera["is_online"], camera["last_is_online_change"])
        for seed in (1, 2)
        for message in generated("nest_cameras", 6_000, seed=seed)
        for camera in message["devices"]["cameras"].values()
    )
    changes: Counter[tuple[bool, bool]] = Counter()
    for (device, at, was_online, since), (other, then, is_online, change) in pairwise(states):
        assert change <= then
        if device == other:
            # Between two messages a camera may have been offline and be back.
            assert at < change or (change, is_online) == (since, was_online), (device, at, then)
            changes[was_online, is_online] += 1
    assert changes[True, False] > 20
    assert changes[False, True] > 20
    offline = sum(not is_online for _, _, is_online, _ in states)
    assert 0.005 < offline / len(states) < 0.015


def test_fates_and_sightings_are_those_of_the_seed_when_messages_begin_at_another_time() -> None:
    pipeline, found = load_pipeline("nest_cameras"), []
    for hour in (5, 17):
        start, span = datetime(2026, 11, 20, hour, tzinfo=UTC), timedelta(hours=3)
        made = generate.messages(pipeline, events=3_000, seed=1, bad_fraction=0.02, start=start, span=span)
        found.append([(key, reason, value and value.count(b'"has_person":true')) for _, key, value, reason in made])
    assert found[0] == found[1]


def keys_of(name: str, message: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """What a message counts for in the view of its pipeline's threshold: its key, and the window's start."""
    match name:
        case "nest_cameras":
            for device, camera in message["devices"]["cameras"].items():
                if camera["last_event"]["has_person"]:
                    yield nest_cameras.location(device), camera["last_event"]["start_time"][:13]
        case "auction_bids":
            yield message["category"], message["currency"], message["bid_time"][:13]
        case "isp_hits":
            # Of the windows that overlap, every second one.
            window = parse_time(message["hittime"]) - timedelta(minutes=2)
            yield message["zipcode"], window.strftime("%Y-%m-%dT%H:%M")[:-1]
        case _:
            pytest.fail(f"write how {name} counts")


@pytest.mark.parametrize(("name", "report"), THRESHOLDS)
def test_report_of_each_hour_has_some_keys_above_the_limit_when_the_demo_has_produced(
    name: str, report: Threshold
) -> None:
    produced = generated(name, demo_run.EVENTS, bad_fraction=demo_run.BAD_FRACTION)
    counts = Counter(key for message in produced for key in keys_of(name, message))
    for hour in ("2026-11-20T05", "2026-11-20T06", "2026-11-20T07"):
        of_hour = [count > report.above for key, count in counts.items() if key[-1].startswith(hour)]
        assert any(of_hour), max(counts.values())
        assert not all(of_hour)


def test_records_have_their_event_times_in_order_when_they_are_spread_over_three_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, bytes]] = []

    def enqueue(producer: Any, topic: str, value: bytes, key: Any, *, timestamp: int, on_delivery: Any) -> None:
        sent.append((timestamp, value))
        on_delivery(None, SimpleNamespace(partition=lambda: 0))

    monkeypatch.setattr(kafka, "create_topic", lambda topic, partitions: None)
    monkeypatch.setattr(kafka, "topic_limits", lambda topic: SimpleNamespace(batch=1_000_000))
    monkeypatch.setattr(kafka, "producer", lambda **_: SimpleNamespace(flush=lambda _: 0))
    monkeypatch.setattr(kafka, "enqueue", enqueue)
    before = datetime.now(UTC)
    told = generate.produce(load_pipeline("isp_hits"), events=90)
    first = parse_time(told["first"])
    assert timedelta() <= first - (before - timedelta(hours=3)) <= datetime.now(UTC) - before
    moments = [first + timedelta(minutes=2) * number for number in range(90)]
    assert parse_time(told["last"]) == moments[-1]
    assert [timestamp for timestamp, _ in sent] == [int(moment.timestamp() * 1000) for moment in moments]
    # The record's timestamp is the event time in its value.
    assert [time_of(timestamp) for timestamp, _ in sent] == [parse_time(json.loads(v)["hittime"]) for _, v in sent]


FOLLOWS: dict[str, Any] = {"until": 1, "seconds": None, "tell": lambda _: None}
SOURCES = {"pattern": KafkaTopics(pattern="changes-.*"), "assign": KafkaTopics(assign={"wiki-a": (0,), "wiki-b": (0,)})}


class Enough(Exception):
    """The topic is known."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings, tmp_path: Path) -> list[str]:
    """The topics that are made; none is written to."""
    topics: list[str] = []

    def create(topic: str, partitions: int) -> None:
        topics.append(topic)
        raise Enough

    set_settings(TIDEMARK_HOME=str(tmp_path))
    monkeypatch.setattr(kafka, "create_topic", create)
    return topics


def test_follower_says_that_a_topic_must_be_named_when_the_pipeline_reads_a_pattern(made: list[str]) -> None:
    pipeline = replace(load_pipeline("wiki_changes"), source=SOURCES["pattern"])
    with pytest.raises(UsageError, match=r"reads topics that match 'changes-\.\*' — name one with --topic"):
        follower.follow(pipeline, "http://127.0.0.1:1/", **FOLLOWS)
    assert made == []


@pytest.mark.parametrize(
    ("source", "topic", "written"),
    [("pattern", "changes-a", "changes-a"), ("assign", "", "wiki-a"), ("assign", "wiki-b", "wiki-b")],
)
def test_follower_writes_the_named_topic_or_the_first_when_its_source_has_no_list(
    made: list[str], source: str, topic: str, written: str
) -> None:
    pipeline = replace(load_pipeline("wiki_changes"), source=SOURCES[source])
    with pytest.raises(Enough):
        follower.follow(pipeline, "http://127.0.0.1:1/", topic=topic, **FOLLOWS)
    assert made == [written]


def test_stream_is_not_followed_when_the_named_topic_is_none_of_the_pipeline(made: list[str]) -> None:
    with pytest.raises(UsageError, match="the pipeline does not read topic 'others' — it reads wiki-changes"):
        demo._followed(load_pipeline("wiki_changes"), "http://127.0.0.1:1/", "others", "", "")
    with pytest.raises(Enough):
        demo._followed(
            load_pipeline("wiki_changes"), "http://127.0.0.1:1/", "wiki-changes", "", "", until=None, seconds=None
        )
    assert made == ["wiki-changes"]


def test_rate_is_kept_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            hour_ago = datetime.now(tz) - timedelta(hours=1)
            return cls.fromtimestamp(hour_ago.timestamp(), tz)

    waited: list[float] = []
    producer: Any = SimpleNamespace(
        poll=lambda left: waited.append(left) if left < 1 else pytest.fail(f"waits {left} s")
    )
    pace = generate.Pace(1_000)
    monkeypatch.setattr(generate, "datetime", Clock)
    for _ in range(3):
        pace.wait(producer)
    assert waited
