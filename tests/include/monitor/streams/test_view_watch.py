"""The page of a live view follows its topic on a real broker, and says why when it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import NewPartitions

from include import kafka
from include.monitor.streams import view_watch
from include.monitor.streams.live_windows import LiveWindows
from include.offsets import TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec.views import VERSION_HEADER
from include.times import format_time
from tests.conftest import Home, wait_for
from tests.support.live_view import BEGIN, HOSTILE, PLACE, client_of_pages, message
from tests.support.threads import no_thread_starts

pytestmark = [pytest.mark.services, pytest.mark.own_services]

TOPIC = "isp-hits-by-zip"


def following(watermark: str) -> view_watch.Following:
    """The view as it is followed when nothing was read yet, with a watermark of this length."""
    pipeline = load_pipeline("isp_hits")
    declared = next(each for each in pipeline.views if each.speed.topic == TOPIC)
    view = replace(declared, speed=replace(declared.speed, watermark=watermark))
    return view_watch.Following(pipeline, view, time.monotonic(), LiveWindows(view))


@pytest.fixture
def client(in_process: Home) -> Iterator[httpx.Client]:
    with client_of_pages() as client:
        yield client


def test_view_follows_its_topic_per_window_and_key_when_it_is_watched(client: httpx.Client) -> None:
    def shown(**query: str) -> Any:
        return client.get(PLACE, params={**query, "format": "json"}).json()

    # Whoever asked for this view before, with another home, is still remembered for a moment.
    wait_for("a word about the topic", lambda: f"no topic {TOPIC} exists" in shown()["error"], 30)
    kafka.create_topic(TOPIC, 2, compacted=True)
    later = BEGIN + timedelta(minutes=5)
    kafka.send(TOPIC, [message(BEGIN, "10001", 7), message(BEGIN, HOSTILE, 9), message(later, "10001", 3)])
    found = wait_for("the messages", lambda: (page := shown())["read_at"] and len(page["windows"]) == 2 and page, 60)
    assert (found["error"], found["by"], found["measure"]) == ("", ["zipcode"], "hits")
    assert (found["start"], [row["key"] for row in found["rows"]]) == (format_time(later), [["10001"]])
    assert [bar["total"] for bar in found["windows"]] == ["16", "3"]
    first = shown(window=format_time(BEGIN))
    assert [(row["key"], row["value"]) for row in first["rows"]] == [([HOSTILE], "9"), (["10001"], "7")]
    page = client.get(PLACE, params={"window": format_time(BEGIN)})
    assert HOSTILE not in page.text
    assert f"{PLACE}/events?measure=hits&amp;window=" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    # What another program wrote there stops nothing.
    kafka.send(TOPIC, [(b"camera-7", b"hello")])
    kafka.send(TOPIC, [message(later, "10001", 30, 2)])
    wait_for("the new value", lambda: shown()["rows"][0]["value"] == "30", 30)
    wait_for("the foreign message", lambda: shown()["foreign"] == 1, 30)
    assert f"1 message of the topic is left out: the stream wrote no such keys and values. The last one: {TOPIC}-" in (
        client.get(PLACE).text
    )
    # Topic partitions were added: older values of the key, and their deletion, lie in another one than its newest.
    producer, (key, value) = kafka.producer(), message(later, "10001", 31, 4)
    producer.produce(TOPIC, value, key, partition=0)
    assert producer.flush(30) == 0
    wait_for("the newest value", lambda: shown()["rows"][0]["value"] == "31", 30)
    producer.produce(TOPIC, None, key, partition=1, headers={VERSION_HEADER: b"3"})
    producer.produce(TOPIC, message(later, "20002", 5)[1], message(later, "20002", 5)[0], partition=1)
    assert producer.flush(30) == 0
    wait_for("the other key", lambda: "20002" in str(shown()["rows"]), 30)
    assert [(row["key"], row["value"]) for row in shown()["rows"]] == [(["10001"], "31"), (["20002"], "5")]
    with client.stream("GET", f"{PLACE}/events") as events:
        assert any(line.startswith("event: page") for line in events.iter_lines())


def test_windows_are_shown_when_nothing_was_written_for_longer_than_they_span(client: httpx.Client) -> None:
    def shown() -> Any:
        return client.get(PLACE, params={"format": "json"}).json()

    # Another test has written to the topic a moment ago.
    brokers = kafka.admin()
    brokers.delete_topics([TOPIC])[TOPIC].result(30)
    wait_for("a word about the topic", lambda: f"no topic {TOPIC} exists" in shown()["error"], 60)
    kafka.create_topic(TOPIC, 2, compacted=True)
    producer, days_ago = kafka.producer(), BEGIN - timedelta(days=2)
    for number in range(3):
        key, value = message(days_ago + timedelta(minutes=5 * number), "10001", number + 1)
        producer.produce(TOPIC, value, key, timestamp=int(days_ago.timestamp() * 1000) + 300_000 * number)
    assert producer.flush(30) == 0
    page = wait_for("the messages", lambda: (page := shown())["read_at"] and len(page["windows"]) == 3 and page, 60)
    assert [bar["total"] for bar in page["windows"]] == ["1", "2", "3"]
    assert not page["is_cut"]


@pytest.mark.parametrize(
    ("watermark", "quiet", "start"),
    # The windows span 23 times 5 minutes and 10 more; an hour is added. Each message is 10 minutes after the last.
    [
        ("10m", timedelta(0), 980),
        ("10m", timedelta(days=3), 980),
        # A clock that was ahead when it wrote the last message hides nothing.
        ("10m", timedelta(hours=-10), 920),
        ("36500d", timedelta(0), 0),
        ("5h", timedelta(0), 951),
    ],
)
def test_topic_is_read_from_where_its_newest_windows_begin_when_it_is_watched(
    monkeypatch: pytest.MonkeyPatch, watermark: str, quiet: timedelta, start: int
) -> None:
    tp, newest = TopicPartition(TOPIC, 0), datetime.now(UTC) - quiet
    times = [newest - timedelta(minutes=10 * (999 - offset)) for offset in range(1000)]
    answers = {"describe_topics": {TOPIC: TopicIdentity(TOPIC, "id", 1)}, "offset_bounds": {tp: (0, 1000)}}
    for name, answer in answers.items():
        monkeypatch.setattr(kafka, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(kafka, "newest_timestamp", lambda _: times[-1], raising=False)
    monkeypatch.setattr(
        kafka, "offsets_at", lambda moment, _: {tp: next((at for at, time in enumerate(times) if time >= moment), None)}
    )
    known = following(watermark)
    assert view_watch._starts(known) == {tp: start}


def test_windows_are_told_as_incomplete_when_they_begin_before_what_was_read() -> None:
    known = following("10m")
    assert not known.is_cut
    known.since = BEGIN
    known.windows.note(*message(BEGIN, "10001", 7)[:2])
    assert not known.is_cut
    # A late row: of its window only this key was read.
    before = message(BEGIN - timedelta(minutes=5), "10001", 7)
    known.windows.note(*before)
    assert known.is_cut
    known.windows.note(before[0], None)
    assert not known.is_cut


def test_nothing_is_shown_of_a_topic_when_it_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    known = following("10m")
    known.read_at = datetime.now(UTC)
    known.windows.note(*message(BEGIN, "10001", 7)[:2])
    assert known.windows.distribution("hits")
    monkeypatch.setattr(view_watch, "_starts", lambda _: {})
    view_watch.ViewWatch()._read((known.pipeline.name, known.view.name), known)
    assert f"no topic {TOPIC} exists" in known.error
    assert (known.windows.distribution("hits"), known.read_at) == ((), None)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> view_watch.ViewWatch:
    """A watch whose threads read nothing."""
    monkeypatch.setattr(view_watch.ViewWatch, "_run", lambda *_: None)
    return view_watch.ViewWatch()


def test_reader_is_kept_when_the_one_before_it_ends_after_its_page_has_come_back(unread: view_watch.ViewWatch) -> None:
    pipeline = load_pipeline("isp_hits")
    first = unread.follow(pipeline, pipeline.views[0], 0)
    (key,) = unread._followed
    first.asked_at = float("-inf")
    assert not unread._is_wanted(key, first)
    second = unread.follow(pipeline, pipeline.views[0], 0)
    assert second is not first
    # After its pause the first thread looks once more.
    assert not unread._is_wanted(key, first)
    assert unread._is_wanted(key, second)
    assert unread.follow(pipeline, pipeline.views[0], 0) is second


def test_view_is_read_later_when_its_thread_could_not_start(unread: view_watch.ViewWatch) -> None:
    pipeline = load_pipeline("isp_hits")
    with no_thread_starts():
        unread.follow(pipeline, pipeline.views[0], 0)
    assert not unread._followed


def test_view_is_read_anew_when_it_is_declared_otherwise_while_its_page_is_open(unread: view_watch.ViewWatch) -> None:
    pipeline = load_pipeline("isp_hits")
    view = pipeline.views[0]
    moved = replace(view, speed=replace(view.speed, topic="others"))
    former = unread.follow(pipeline, view, 0)
    now = unread.follow(pipeline, moved, 0)
    assert (former.view, now.view) == (view, moved)
    # A page that was opened before goes on with its own declaration for a moment.
    assert unread.follow(pipeline, view, 0) is former
    assert unread.follow(pipeline, moved, 0) is now


def test_added_topic_partitions_are_read_when_a_page_has_been_open_for_a_minute(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> Any:
        return client.get(PLACE, params={"format": "json"}).json()

    monkeypatch.setattr(view_watch, "DESCRIBED", 1.0)
    kafka.create_topic(TOPIC, 2, compacted=True)
    wait_for("the topic's end", lambda: shown()["read_at"], 60)
    added = len(kafka.topic_partitions_of(kafka.describe_topics([TOPIC]).values()))
    brokers = kafka.admin()
    brokers.create_partitions([NewPartitions(TOPIC, added + 1)])[TOPIC].result(30)
    key, value = message(BEGIN, "30003", 77, 9)
    producer = kafka.producer()
    wait_for("the topic partition", lambda: len(producer.list_topics(TOPIC).topics[TOPIC].partitions) > added, 30)
    producer.produce(TOPIC, value, key, partition=added)
    assert producer.flush(30) == 0
    wait_for("its message", lambda: "77" in str(shown()["windows"]), 60)


def test_view_is_told_as_old_when_the_broker_has_gone(client: httpx.Client, in_process: Home) -> None:
    def shown() -> Any:
        return client.get(PLACE, params={"format": "json"}).json()

    kafka.create_topic(TOPIC, 2, compacted=True)
    wait_for("the topic's end", lambda: shown()["read_at"], 60)
    in_process.run("down", "kafka")
    wait_for("a word about the broker", lambda: "Kafka at" in shown()["error"], 60)
    last = shown()["read_at"]
    wait_for("the next attempt", lambda: shown()["error"], 30)
    assert shown()["read_at"] == last
