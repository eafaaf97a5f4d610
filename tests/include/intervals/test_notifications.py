"""Notifications of what a report lists newly: real broker and ledger."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from include.intervals.telling.notifications import note_listed, notify
from include.ledger.intervals import attempts
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing
from tests.conftest import Home
from tests.support import audit
from tests.support.attempts import begin_attempt, hour, note_build, register

pytestmark = pytest.mark.services


def test_messages_have_ids_of_their_own_when_two_listings_with_equal_keys_share_a_topic(in_process: Home) -> None:
    topic = f"told-{os.getpid()}"
    listings = [
        Listing(title, "found", ("device", "celsius"), key=("device",), notify=topic) for title in ("Slow", "Hot")
    ]
    pipeline = replace(load_pipeline("nest_cameras"), name=f"told_{os.getpid()}", reports=tuple(listings))
    attempt = begin_attempt(pipeline.name, hour())
    pinned = attempts.load_attempt(attempt).pinned
    for listing in listings:
        note_listed(pinned, listing, [{"device": "a", "id": 7, "interval": "mine", "celsius": 80}])
    register(attempt, note_build(attempt))

    assert notify(pipeline, pinned) == 2
    assert notify(pipeline, pinned) == 0
    bodies = [json.loads(record.value) for record in audit.read_topic(in_process.kafka, topic).values()]
    start = f"{pipeline.name}/2026-11-20T05:00:00Z"
    assert {body["id"] for body in bodies} == {f'{start}/{title}/{{"device": "a"}}' for title in ("Slow", "Hot")}
    assert {(body["interval"], body["celsius"]) for body in bodies} == {("2026-11-20T05:00:00Z", 80)}
