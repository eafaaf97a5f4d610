"""A broker that does not answer is waited for once, however many pipelines are asked about."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from include.errors import RequestRefused, ServiceUnreachable
from include.monitor.streams import broker
from include.monitor.streams.broker import BrokerView, BrokerWatch
from include.pipelines import declarations
from tests.support.threads import no_thread_starts

PIPELINES = declarations().loaded
PATIENCE = 0.5


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[threading.Thread, str]]]:
    """A broker that answers no look until the test ends; returns who looked at which pipeline.

    The watch of pages that were shown before in this process looks, too.
    """
    looked: list[tuple[threading.Thread, str]] = []
    over = threading.Event()

    def seen_now(known: broker._Pipeline) -> BrokerView:
        looked.append((threading.current_thread(), known.declared.name))
        over.wait(60)
        raise ServiceUnreachable("Kafka does not answer", remedy="")

    monkeypatch.setattr(broker, "PATIENCE", PATIENCE)
    monkeypatch.setattr(broker, "_seen_now", seen_now)
    yield looked
    over.set()


def test_pages_wait_once_for_all_pipelines_when_the_broker_hangs(hung: list[tuple[threading.Thread, str]]) -> None:
    watch = BrokerWatch()
    began = time.monotonic()
    watch.watch(PIPELINES)
    views = [watch.view(each) for each in PIPELINES]
    took = time.monotonic() - began
    assert len(views) >= 5
    assert {each.error for each in views} == {"Kafka does not answer"}
    assert PATIENCE <= took < 2 * PATIENCE
    # Later requests do not wait at all.
    began = time.monotonic()
    assert watch.view(PIPELINES[-1]).error
    assert time.monotonic() - began < PATIENCE / 2
    assert [name for thread, name in hung if thread is watch._thread] == [PIPELINES[0].name]


def test_broker_is_looked_at_later_when_the_watch_s_thread_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_seen_now", lambda _: BrokerView(seen_at=datetime.now(UTC)))
    watch = BrokerWatch()
    with no_thread_starts():
        watch.watch(PIPELINES[:1])
    assert watch.view(PIPELINES[0]).error == ""


def test_one_pipeline_is_looked_at_in_a_round_when_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def seen_now(known: broker._Pipeline) -> BrokerView:
        looked.append(known.declared.name)
        raise ServiceUnreachable("Kafka does not answer", remedy="")

    monkeypatch.setattr(broker, "_seen_now", seen_now)
    wanted = [broker._Pipeline(each, 0.0, 0.0) for each in PIPELINES]
    BrokerWatch()._look_at(wanted)
    assert looked == [PIPELINES[0].name]
    assert {each.view.error for each in wanted} == {"Kafka does not answer"}


def test_other_pipelines_are_looked_at_when_the_broker_refuses_a_topic_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RequestRefused("Kafka refuses this user a right about t", remedy="grant it")

    def seen_now(known: broker._Pipeline) -> BrokerView:
        if known.declared.name == PIPELINES[0].name:
            raise refused
        return BrokerView()

    monkeypatch.setattr(broker, "_seen_now", seen_now)
    wanted = [broker._Pipeline(each, 0.0, 0.0) for each in PIPELINES]
    BrokerWatch()._look_at(wanted)
    first, *others = (each.view for each in wanted)
    assert (first.error, first.error_remedy) == (refused.message, refused.remedy)
    assert others == [BrokerView()] * len(others)


def test_broker_is_seen_for_all_pipelines_when_a_round_of_looks_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def seen_now(known: broker._Pipeline) -> BrokerView:
        nonlocal clock
        clock += 10
        return BrokerView()

    monkeypatch.setattr(broker, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(broker, "_seen_now", seen_now)
    watch = BrokerWatch()
    # Only the test looks.
    watch._thread = threading.current_thread()
    watch.watch(PIPELINES)
    watch._look_at(watch._asked.values())
    assert {watch.view(each).error for each in PIPELINES} == {""}
    clock += broker._FRESH
    assert {watch.view(each).error for each in PIPELINES} == {"Kafka does not answer"}
