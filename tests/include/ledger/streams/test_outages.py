"""What a micro-batch notes of outages: which it ends and begins, and with how many statements."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from include.ledger.database import engine, session
from include.ledger.streams import outages
from include.ledger.streams.outages import Place, StateChange
from tests.conftest import Home
from tests.support.ledger_reads import statements_of

pytestmark = pytest.mark.services

AT = datetime(2026, 11, 20, 5, tzinfo=UTC)
REPORTS = ("offline cameras", "offline sirens")


def changes_of(keys: Iterable[int], *states: bool, offset: int) -> list[StateChange]:
    """Each thing's states, one after the other, of the things of two reports."""
    return [
        StateChange(report, str(key), is_up, Place("nest-logs", 0, offset + number, key), AT, {"state": is_up})
        for report in REPORTS
        for number, is_up in enumerate(states)
        for key in keys
    ]


def record(pipeline: str, micro_batch: int, changes: list[StateChange]) -> int:
    """Note the changes, and return the number of statements."""
    with statements_of(engine()) as sent, session() as ledger:
        outages.record(ledger, pipeline, micro_batch, changes, {"nest-logs": "id"})
    return len(sent)


@pytest.mark.parametrize("things", [10, 300])
def test_statements_do_not_grow_when_many_outages_end_at_once(postgres: Home, pipeline: str, things: int) -> None:
    keys = range(things)
    record(pipeline, 1, changes_of(keys, False, offset=0))
    # A fifth of them goes down again at once, and one of these comes back at once.
    again = changes_of(keys[things // 5 :], True, offset=10) + changes_of(keys[1 : things // 5], True, False, offset=10)
    back = changes_of([0], True, False, True, offset=10)
    assert record(pipeline, 2, again + back) <= 8
    down = {str(key) for key in range(1, things // 5)}
    for report in REPORTS:
        assert outages.open_keys(pipeline, report) == down
        watched = outages.Watched((), 2, 2)
        found = outages.outages_within(pipeline, report, watched)
        ended = {(each.key, each.micro_batch, each.ended and each.ended.offset) for each in found}
        assert ended == {
            *((str(key), 1, 10) for key in keys),
            *((key, 2, None) for key in down),
            ("0", 2, 12),
        }


def test_reports_with_outages_are_found_when_they_are_not_among_those_that_are_watched(
    postgres: Home, pipeline: str
) -> None:
    first, second = REPORTS
    record(pipeline, 1, changes_of(range(3), False, offset=0))
    record(pipeline, 2, changes_of([0], True, offset=10))
    assert outages.open_of_others(pipeline, []) == {first: 2, second: 2}
    assert outages.open_of_others(pipeline, [second]) == {first: 2}
    assert outages.open_of_others(pipeline, REPORTS) == {}


def test_outages_end_when_their_keys_are_looked_for_in_portions(
    postgres: Home, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_AT_ONCE", 2)
    record(pipeline, 1, changes_of(range(5), False, offset=0))
    record(pipeline, 2, changes_of(range(5), True, offset=1))
    assert [outages.open_keys(pipeline, report) for report in REPORTS] == [frozenset(), frozenset()]
