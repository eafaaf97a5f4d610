"""An interval that was pinned again: what is said of its registered revision is about the offsets that it has."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import select

from include.errors import UsageError
from include.iceberg.statement import statement_of
from include.intervals.explanation import explain
from include.intervals.rebuild import rebuild
from include.ledger.database import session
from include.ledger.intervals import attempts, pins, revisions
from include.ledger.models import Build
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour, note_build, register
from tests.support.proved import PIPELINE, register_hour

pytestmark = pytest.mark.services

PARTITION = "date=2026-11-20/interval=2026-11-20T05"


def bounds(ranges: list[dict[str, int]]) -> list[tuple[int, int]]:
    return [(each["from_offset"], each["until_offset"]) for each in ranges]


def test_ranges_are_those_of_the_registered_build_when_the_interval_was_pinned_again(postgres: Home) -> None:
    interval = register_hour(0)
    before = explain(PIPELINE, PARTITION)
    pinned = pins.find_interval(PIPELINE, hour(0).from_time)
    assert pinned is not None
    longer = [replace(each, until_offset=150) for each in pinned.ranges]
    assert pins.replace_ranges(pinned, longer, repinned_by="test") is not None

    after = explain(PIPELINE, PARTITION)
    assert bounds(after["ranges"]) == [(0, 100), (0, 100)]
    assert after["ranges"] == before["ranges"]
    assert sum(each["archived"] for each in after["ranges"]) == after["records"]["archived"]
    with session() as ledger:
        build = ledger.scalars(select(Build.id).where(Build.interval_id == interval)).one()
    summary = statement_of(attempts.of_build(build)).summary([])
    assert bounds(json.loads(summary["tidemark.ranges"])) == [(0, 100), (0, 100)]
    with pytest.raises(UsageError, match="was pinned again since this was registered") as refused:
        rebuild(PIPELINE, PARTITION, "archive", lambda job: pytest.fail("nothing is built"))
    assert "--from 2026-11-20T05:00:00Z --to 2026-11-20T06:00:00Z" in refused.value.remedy


def test_timestamp_is_not_noted_when_it_is_of_an_end_that_the_interval_has_no_longer(postgres: Home) -> None:
    """Whoever pins the next interval would take the log for one that was written again."""
    pipeline = "pinned_again_meanwhile"
    begin_attempt(pipeline)
    known = pins.find_interval(pipeline, hour(0).from_time)
    assert known is not None
    longer, same = known.ranges
    again = pins.replace_ranges(known, [replace(longer, until_offset=150), same], repinned_by="test")
    assert again is not None
    pins.note_last_timestamps(known, {longer.topic_partition: 5, same.topic_partition: 7})
    assert pins.last_timestamps(again) == {same.topic_partition: (99, 7)}


def test_registered_ranges_are_those_of_the_last_build_when_the_interval_was_pinned_and_run_again(
    postgres: Home,
) -> None:
    pipeline = "pinned_and_run_again"
    first = begin_attempt(pipeline)
    register(first, note_build(first))
    known = attempts.load_attempt(first).pinned
    longer = [replace(each, until_offset=150) for each in known.ranges]
    again = pins.replace_ranges(known, longer, repinned_by="test")
    assert again is not None
    assert revisions.published_ranges(known.id) == known.ranges
    later = begin_attempt(pipeline)
    register(later, note_build(later))
    assert revisions.published_ranges(known.id) == again.ranges
