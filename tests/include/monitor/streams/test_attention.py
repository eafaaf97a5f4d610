"""How many intervals need attention, by the first page: those that their schedule still allows time do not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from include.ledger.pages.calendar import KnownInterval
from include.monitor.history import calendar
from include.monitor.history.calendar import Calendar
from include.monitor.streams import page
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline

ISP, NEST = load_pipeline("isp_hits"), load_pipeline("nest_cameras")
HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def known(pipeline: Pipeline, from_time: datetime, *, exit_code: int = 0) -> KnownInterval:
    return KnownInterval(
        pipeline.name, from_time, from_time + HOUR, "failed" if exit_code else "registered", 1, False, False, exit_code,
        "test", 0, 0, True, True, None, {},
    )  # fmt: skip


def needing_attention(
    monkeypatch: pytest.MonkeyPatch, pinned: Sequence[KnownInterval], now: datetime, *pipelines: Pipeline
) -> int:
    """Return how many intervals need attention at that time when these are pinned."""
    spans = {each.pipeline: (NOON - HOUR, each.to_time) for each in pinned}

    def begun(names: Sequence[str], since: datetime, until: datetime) -> list[KnownInterval]:
        return [each for each in pinned if since <= each.from_time < until]

    monkeypatch.setattr(calendar, "known_intervals", begun)
    monkeypatch.setattr(calendar, "unregistered_intervals", lambda *_: [])
    monkeypatch.setattr(calendar, "pinned_time", lambda _: spans)
    monkeypatch.setattr(calendar, "missing_intervals", lambda _: ())
    monkeypatch.setattr(page, "datetime", SimpleNamespace(now=lambda zone: now))
    return page._Attention().count(pipelines)


def test_due_interval_needs_attention_only_when_its_deadline_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = replace(NEST, schedule=replace(NEST.schedule, registered_within=timedelta(hours=9)))
    within = ISP.schedule.registered_within
    pinned = [known(ISP, NOON - HOUR), known(patient, NOON - HOUR)]
    # The hour from noon has ended, and nothing has pinned it.
    on_its_way, late = NOON + HOUR + within - timedelta(seconds=1), NOON + HOUR + within
    assert needing_attention(monkeypatch, pinned, on_its_way, ISP, patient) == 0
    # Another pipeline's patience does not count.
    assert needing_attention(monkeypatch, pinned, late, ISP, patient) == 1


def test_failed_interval_needs_attention_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = replace(NEST, schedule=replace(NEST.schedule, registered_within=timedelta(hours=9)))
    pinned = [known(patient, NOON - HOUR, exit_code=3)]
    assert needing_attention(monkeypatch, pinned, NOON + timedelta(minutes=1), patient) == 1


def test_last_number_is_shown_when_another_page_reads_the_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def read(shown: Sequence[Pipeline], now: datetime) -> Calendar:
        if attention.is_slow:
            reading.set()
            assert go_on.wait(30)
        return Calendar(now, now, (), 7, (), {})

    class Attention(page._Attention):
        is_slow = False

    attention = Attention()
    monkeypatch.setattr(page, "read_calendar", read)
    monkeypatch.setattr(page, "_RECENT", -1.0)
    assert attention.count([ISP]) == 7
    attention.is_slow = True
    other = threading.Thread(target=attention.count, args=([ISP, NEST],))
    other.start()
    assert reading.wait(30)
    try:
        assert attention.count([ISP]) == 7
    finally:
        go_on.set()
        other.join(30)


def test_number_is_forgotten_when_nobody_asks_for_these_pipelines_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, at = page._Attention(), [0.0]
    monkeypatch.setattr(page, "read_calendar", lambda shown, now: Calendar(now, now, (), 7, (), {}))
    monkeypatch.setattr(page.time, "monotonic", lambda: at[0])
    attention.count([ISP])
    at[0] = 2 * page._KEPT
    attention.count([NEST])
    assert list(attention._read) == [(NEST.name,)]
