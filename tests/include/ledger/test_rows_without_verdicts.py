"""Rows of intervals and attempts come without the verdict, which may be a hundred times as long as all the rest."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from include.doctor.compare import disagreements_of
from include.erasure.keys import Keys
from include.housekeeping.run import keep_house
from include.ledger.database import engine, session
from include.ledger.erasures.coordinates import intervals_with
from include.ledger.erasures.scrub import forget
from include.ledger.intervals import attempts
from include.ledger.models import Attempt, IntervalRow, Replay
from include.ledger.pages.interval import whole_interval
from include.ledger.quarantine import RecordKey, decisions
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support.attempts import TOPIC, begin_attempt, hour, note_build, register
from tests.support.committed import commit
from tests.support.ledger_reads import statements_of

pytestmark = pytest.mark.services

NAME = "nest_cameras"
DIFFERENCE = {"class": "late", "what": "hourly_counts", "where": "94103", "evidence": "a row of cam-1"}
RECORD = RecordKey(TOPIC, "id", 0, 1)


@pytest.fixture(scope="module")
def told(postgres: Home) -> list[int]:
    """Attempts of registered intervals with verdicts that name a key; the first interval delivers a replay."""
    numbers = []
    for number in range(3):
        attempt = begin_attempt(NAME, hour(number))
        numbers.append(attempt)
        register(attempt, note_build(attempt))
        attempts.end_attempt(attempt, 0, {"report": "file:///nowhere", "differences": [DIFFERENCE]})
    batch = commit(NAME, 0, 0, 10)
    with session() as ledger:
        ledger.get_one(Attempt, numbers[-1]).verdict = {"differences": [DIFFERENCE]}
        ledger.add(
            Replay(
                pipeline=NAME, topic=TOPIC, topic_id="id", topic_partition=0, record_offset=1, fate="archived",
                replayed_by="me@here", decoder_version="1", micro_batch_id=batch,
                interval_id=attempts.load_attempt(numbers[0]).pinned.id,
            )
        )  # fmt: skip
    return numbers


def keep_dry() -> object:
    return keep_house(load_pipeline(NAME), dry_run=True, progress=lambda line: None)


@pytest.mark.parametrize(
    "look",
    [
        lambda: disagreements_of(load_pipeline(NAME), deep=False),
        keep_dry,
        lambda: intervals_with(NAME, {RECORD}),
        lambda: decisions(NAME).replays,
    ],
    ids=["doctor", "housekeeping", "intervals with records", "decisions"],
)
def test_verdicts_are_not_read_when_rows_of_many_intervals_are(told: list[int], look: Callable[[], object]) -> None:
    with statements_of(engine()) as sent:
        assert look()
    assert any("intervals" in each for each in sent)
    assert [each for each in sent if re.search(r"\bverdict\b", each)] == []


def test_verdicts_are_read_at_once_when_an_erasure_looks_through_them(told: list[int]) -> None:
    intervals = [attempts.load_attempt(attempt).pinned.id for attempt in told]
    with statements_of(engine()) as sent, session() as ledger:
        # Rows that the session has without their verdict are read with it.
        assert len({ledger.get_one(IntervalRow, each).pipeline for each in intervals}) == 1
        forget(ledger, NAME, intervals, Keys(["cam-1"]), [])
    read = [each for each in sent if each.startswith("SELECT") and re.search(r"\bverdict\b", each)]
    # Attempts and intervals, each as texts, and those that name the key as rows.
    assert len(read) == 4
    whole = whole_interval(NAME, hour().from_time)
    assert whole is not None
    assert whole.verdict["report"] == "file:///nowhere"
    assert "cam-1" not in str(whole.verdict)
    with session() as ledger:
        assert "cam-1" not in str(ledger.get_one(Attempt, told[-1]).verdict)
