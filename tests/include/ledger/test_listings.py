"""Rows that reports list: the operators are told of each that the registered interval before did not list."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.findings import Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import Changes
from include.ledger.listings import (
    LONGEST_KEY,
    Listed,
    ListedReport,
    key_of,
    present_key,
    registered_too_early,
    sending_new,
)
from include.ledger.models import Build, ListedRow
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register

pytestmark = [pytest.mark.services]

REPORT = "Things"


def holding(*keys: str) -> ListedReport:
    return ListedReport(REPORT, tuple(Listed(key, {"name": key}) for key in keys))


def listed(pipeline: str, number: int, *keys: str) -> PinnedInterval:
    """An interval that is registered and lists these."""
    attempt = build_and_register(pipeline, hour(number), listed=(holding(*keys),))
    return attempts.load_attempt(attempt).pinned


def told(pinned: PinnedInterval) -> list[str]:
    with sending_new(pinned, REPORT) as new:
        return [each.key for each in new]


def test_row_is_notified_again_only_when_an_interval_did_not_list_it(pipeline: str) -> None:
    first = listed(pipeline, 0, "a", "b")
    assert told(first) == ["a", "b"]
    # The interval runs again and lists another, too.
    listed(pipeline, 0, "a", "b", "c")
    assert told(first) == ["c"]
    assert told(first) == []
    assert told(listed(pipeline, 1, "b", "d")) == ["d"]
    assert told(listed(pipeline, 2, "a", "b")) == ["a"]


@pytest.mark.parametrize(("shown", "new"), [(None, []), ([["a"]], []), ([], ["a"])], ids=["other", "quiet", "empty"])
def test_rows_of_an_old_interval_are_new_only_when_the_one_before_was_built_with_the_report(
    pipeline: str, shown: list[list[str]] | None, new: list[str]
) -> None:
    """It had another one, this one without notifications, or this one without rows."""
    before = listed(pipeline, 0)
    sections = [{"title": "Others", "rows": []}, *([{"title": REPORT, "rows": shown}] if shown is not None else [])]
    with session() as ledger:
        build = ledger.scalars(select(Build).where(Build.interval_id == before.id)).one()
        build.findings = {**build.findings, "report": {"sections": sections}}
    for number in (1, 2):
        listed(pipeline, number)
    # It is run again.
    assert told(listed(pipeline, 1, "a")) == new


def test_nobody_is_told_twice_or_never_when_intervals_are_registered_out_of_order(pipeline: str) -> None:
    assert told(listed(pipeline, 0, "a")) == ["a"]
    later = listed(pipeline, 2, "a", "x")
    assert told(later) == ["x"]
    # One that waited for a person, say.
    between = listed(pipeline, 1, "x", "y")
    assert registered_too_early(between) == later
    assert told(between) == ["y"]
    # It was away meanwhile.
    assert told(later) == ["a"]
    # Where the later one lists it no more, nobody was told of what this one lists.
    listed(pipeline, 2, "a")
    assert told(listed(pipeline, 1, "x", "y", "z")) == ["x", "z"]


def by(name: str, *values: str) -> list[str]:
    return [key_of({name: value}, [name]) for value in values]


def test_nobody_is_told_of_a_later_interval_when_its_rows_have_another_key(pipeline: str) -> None:
    listed(pipeline, 0, *by("name", "a", "b"))
    later = listed(pipeline, 2, *by("name", "a", "b"))
    between = listed(pipeline, 1, *by("other", "a", "b"))
    assert registered_too_early(between) == later
    with sending_new(later, REPORT, columns=["other"]) as new:
        assert new == []


def test_nobody_is_told_twice_when_a_later_interval_was_built_again_with_a_renamed_key(pipeline: str) -> None:
    listed(pipeline, 0, *by("old", "z"))
    later = listed(pipeline, 2, *by("old", "x"))
    assert told(later) == by("old", "x")
    listed(pipeline, 2, *by("new", "x"))
    with sending_new(listed(pipeline, 1, *by("new", "x", "y")), REPORT, {"old": "new"}, columns=["new"]) as new:
        assert [each.key for each in new] == by("new", "y")


def test_later_interval_is_not_looked_at_again_when_an_earlier_one_only_runs_again(pipeline: str) -> None:
    first = listed(pipeline, 0, "a")
    later = listed(pipeline, 1, "a")
    listed(pipeline, 0)
    assert registered_too_early(first) is None
    assert registered_too_early(later) is None


def test_nobody_is_told_twice_when_the_interval_before_was_pinned_again_and_is_not_run_yet(pipeline: str) -> None:
    assert told(listed(pipeline, 0, "a")) == ["a"]
    before = listed(pipeline, 1, "a", "x")
    assert told(before) == ["x"]
    pins.replace_ranges(before, before.ranges, repinned_by="test")
    later = listed(pipeline, 2, "x", "y")
    assert told(later) == ["y"]
    # What it lists after all was sent of the later one, which is looked at no more: it is not the first time.
    again = listed(pipeline, 1, "x", "y")
    assert registered_too_early(again) is None
    assert told(again) == []


def test_nobody_is_told_twice_when_the_interval_after_was_pinned_again(pipeline: str) -> None:
    assert told(listed(pipeline, 0, "a")) == ["a"]
    later = listed(pipeline, 2, "a", "x")
    assert told(later) == ["x"]
    pins.replace_ranges(later, later.ranges, repinned_by="test")
    assert told(listed(pipeline, 1, "a", "x")) == []


def test_each_is_told_again_when_telling_failed(pipeline: str) -> None:
    first = listed(pipeline, 0, "a")
    with pytest.raises(ZeroDivisionError), sending_new(first, REPORT) as new:
        assert 1 / (len(new) - 1), "the broker is away"
    assert told(first) == ["a"]


def test_row_is_not_notified_again_when_a_build_with_something_unexplained_did_not_list_it(pipeline: str) -> None:
    first = listed(pipeline, 0, "a")
    assert told(first) == ["a"]
    note_build(begin_attempt(pipeline, hour(0)), unexplained=1, listed=(holding(),))
    assert told(listed(pipeline, 1, "a")) == []
    note_build(begin_attempt(pipeline, hour(0)), listed=(holding("a"),))
    assert told(first) == []


def unregistered(pipeline: str, number: int, *keys: str) -> int:
    """The attempt of an interval whose build lists these, and is not registered."""
    attempt = begin_attempt(pipeline, hour(number))
    note_build(attempt, listed=(holding(*keys),))
    return attempt


@pytest.mark.parametrize("judge", [builds.reject, builds.hold])
def test_rows_of_a_build_do_not_count_when_it_was_rejected_or_waits_for_a_person(
    pipeline: str, judge: Callable[[attempts.AttemptSpec, Validation], None]
) -> None:
    first = listed(pipeline, 0, "a")
    assert told(first) == ["a"]
    attempt = unregistered(pipeline, 0, "b")
    judge(attempts.load_attempt(attempt), Validation(False, pipeline))
    assert told(first) == []
    # What the interval before lists is what is registered of it.
    assert told(listed(pipeline, 1, "a", "b")) == ["b"]


def test_rows_of_a_build_count_when_it_is_registered_after_it_waited(pipeline: str) -> None:
    first = listed(pipeline, 0, "a")
    waiting = begin_attempt(pipeline, hour(0))
    built = note_build(waiting, listed=(holding("a", "b"),))
    builds.hold(attempts.load_attempt(waiting), Validation(False, pipeline))
    assert told(first) == ["a"]
    register(waiting, built)
    assert told(first) == ["b"]


def test_rows_of_an_interrupted_registration_count_when_it_is_finished_after_another_build(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    built = note_build(attempt, listed=(holding("a"),))
    passed = Validation(True, pipeline)
    begun = builds.begin_registration(attempts.load_attempt(attempt), passed, Changes(points=(built,)))
    # A kill; the task runs again, and builds before anybody finishes.
    note_build(attempt, listed=(holding("b"),))
    pinned = attempts.load_attempt(attempt).pinned
    assert told(pinned) == []
    builds.finish_registration(begun)
    assert told(pinned) == ["a"]


def test_nobody_is_told_twice_when_another_build_lists_a_row_that_was_sent(pipeline: str) -> None:
    first = listed(pipeline, 0, "a", "b")
    assert told(first) == ["a", "b"]
    listed(pipeline, 0, "b")
    listed(pipeline, 0, "a", "c")
    assert told(first) == ["c"]


def test_rows_of_builds_that_are_never_registered_go_when_the_interval_is_built_again(pipeline: str) -> None:
    first = listed(pipeline, 0, "sent", "unsent")
    with session() as ledger:
        row = ledger.scalars(select(ListedRow).where(ListedRow.interval_id == first.id, ListedRow.key == "sent")).one()
        row.notified_at = func.now()
    attempt = unregistered(pipeline, 0, "built twice")
    note_build(attempt, listed=(holding("rejected"),))
    listed(pipeline, 0, "registered")
    unregistered(pipeline, 0, "last")
    with session() as ledger:
        keys = ledger.scalars(select(ListedRow.key).where(ListedRow.interval_id == first.id)).all()
    assert sorted(keys) == ["last", "registered", "sent"]


def test_key_is_recorded_when_it_is_longer_than_an_index_takes(pipeline: str) -> None:
    texts = [secrets.token_hex(4_000), secrets.token_hex(4_000)]
    keys = [key_of({"name": text, "n": 1}, ["name", "n"]) for text in texts]
    assert told(listed(pipeline, 0, keys[0])) == [keys[0]]
    assert told(listed(pipeline, 1, *keys)) == [keys[1]]


def test_row_is_not_notified_again_when_earlier_code_recorded_its_long_key_as_it_was(pipeline: str) -> None:
    values = {"name": "a" * 5_000}
    as_it_was = json.dumps(values)
    assert told(listed(pipeline, 0, as_it_was)) == [as_it_was]
    assert told(listed(pipeline, 1, key_of(values, ["name"]))) == []


def test_key_of_many_long_texts_is_recorded(pipeline: str) -> None:
    values = {f"c{number}": secrets.token_hex(124) for number in range(16)}
    key = key_of(values, list(values))
    assert len(key) < LONGEST_KEY
    assert key == present_key(key, {}) != key_of({**values, "c3": secrets.token_hex(124)}, list(values))
    assert told(listed(pipeline, 0, key)) == [key]


def test_key_stays_what_it_is_when_it_is_short_or_abbreviated_already() -> None:
    short = key_of({"name": "Zoë", "n": 1}, ["name", "n"])
    assert short == present_key(short, {}) == '{"n": 1, "name": "Zo\\u00eb"}'
    values = {"name": "ä" * 4_000, "other": "b" * 3_000, "n": 1}
    long = key_of(values, list(values))
    assert len(long) < LONGEST_KEY
    assert long.startswith('{"n": 1, "name": "\\u00e4')
    # As earlier code recorded it.
    assert present_key(json.dumps(values, sort_keys=True), {}) == long == present_key(long, {})
    assert present_key(long, {"name": "title"}) == key_of({"title": values["name"], **values}, ["title", "other", "n"])
    assert key_of({**values, "name": "ä" * 3_999}, list(values)) != long
