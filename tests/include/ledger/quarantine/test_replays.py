"""Replays and discards in the ledger: a record is let through once, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from include.errors import AnotherWriter, UsageError
from include.ledger import quarantine
from include.ledger.archive.landing_files import LandingFile, files_at
from include.ledger.database import engine, session
from include.ledger.erasures.coordinates import lock_erasing
from include.ledger.intervals.pins import find_interval, find_neighbours, last_interval, replace_ranges, write_interval
from include.ledger.models import ErasedRecord, Erasure, QuarantineNote
from include.ledger.quarantine import LandedReplay, RecordKey, ReplayedInto
from include.offsets import OffsetRange
from tests.conftest import Home
from tests.support.attempts import hour
from tests.support.committed import span
from tests.support.ledger_reads import statements_of
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services

GOOD, EMPTY, BAD = (RecordKey("events", "id", 0, offset) for offset in range(3))


def landed(path: str) -> LandedReplay:
    files = [LandingFile("archived", path, 1, 9)]
    return LandedReplay({GOOD: "archived", EMPTY: "empty"}, {BAD: ("not_json", "at byte 7")}, files)


def record(pipeline: str, number: int, replay: LandedReplay) -> None:
    quarantine.record_replay(pipeline, number, replay, by="test", decoder_version="1", seconds=0.5)


def test_records_are_known_as_replayed_when_a_replay_is_committed(pipeline: str) -> None:
    assert quarantine.next_replay(pipeline) == 0
    record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))
    assert quarantine.next_replay(pipeline) == 1
    decided = quarantine.decisions(pipeline)
    assert {key: each.fate for key, each in decided.replays.items()} == {GOOD: "archived", EMPTY: "empty"}
    assert [(each.reason, each.detail) for each in decided.failures.values()] == [("not_json", "at byte 7")]
    (file,) = files_at(pipeline, [f"landing/{pipeline}/replay-0/part.parquet"])
    assert (file.fate, file.rows, file.removed_at) == ("archived", 1, None)


def test_replayed_record_is_found_within_the_range_that_begins_with_it_and_not_in_the_one_that_ends_before_it(
    pipeline: str,
) -> None:
    record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))
    found = {begin: [key.coordinates for key in keys] for begin, keys in enumerate(([GOOD], [EMPTY], []))}
    ranges = {begin: [span(begin, begin + 1)] for begin in found}
    assert {begin: quarantine.replayed_within(pipeline, ranges[begin]) for begin in found} == found
    assert {begin: quarantine.pinned_fates(pipeline, ranges[begin], {"events": "id"}) for begin in found} == found
    quarantine.record_discards(pipeline, [BAD], reason="of no use", by="test")
    assert quarantine.discarded(pipeline, [span(0, 9)], {"events": "id"}) == [BAD.coordinates]
    assert quarantine.discarded(pipeline, [span(0, 9)], {"events": "another"}) == []


def test_nothing_is_committed_when_another_replay_has_delivered_a_record(pipeline: str) -> None:
    record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))
    with pytest.raises(AnotherWriter, match="nothing was committed"):
        record(pipeline, 1, landed(f"landing/{pipeline}/replay-1/part.parquet"))
    assert files_at(pipeline, [f"landing/{pipeline}/replay-1/part.parquet"]) == []
    assert quarantine.next_replay(pipeline) == 1


@pytest.mark.parametrize("erased", [GOOD, BAD], ids=["passes", "still fails"])
def test_nothing_is_committed_when_a_record_was_erased_since_it_was_chosen(pipeline: str, erased: RecordKey) -> None:
    told = {"columns": [], "reason": "test", "begun_by": "test", "salt": "00", "key_hashes": [], "counts": {}}
    with session() as ledger:
        ledger.add(erasure := Erasure(pipeline=pipeline, intervals=[], last_build=0, **told))
        ledger.flush()
        place = {"topic": "events", "topic_id": "id", "topic_partition": 0, "record_offset": erased.offset}
        ledger.add(ErasedRecord(pipeline=pipeline, fate="quarantined", erasure_id=erasure.id, **place))
    with pytest.raises(AnotherWriter, match=r"erased .* nothing was committed"):
        record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))
    assert quarantine.next_replay(pipeline) == 0
    with pytest.raises(AnotherWriter, match=f"{erased} was erased"):
        record(pipeline, 0, LandedReplay(failures={GOOD: ("not_json", "a@b"), BAD: ("not_json", "a@b")}))
    decided = quarantine.decisions(pipeline)
    assert (decided.replays, decided.failures) == ({}, {})
    record(pipeline, 0, LandedReplay({EMPTY: "empty"}))
    assert quarantine.next_replay(pipeline) == 1


def test_replay_waits_to_be_committed_when_an_erasure_begins(pipeline: str) -> None:
    def replay() -> None:
        record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))

    assert "pg_advisory_xact_lock" in waits_with(replay, lambda ledger: lock_erasing(ledger, pipeline))


def test_other_records_are_replayed_and_the_failure_is_noted_once_when_its_detail_has_a_nul(pipeline: str) -> None:
    replay = landed(f"landing/{pipeline}/replay-0/part.parquet")
    replay.failures = {BAD: ("event_time_out_of_bounds", "2026\0 is not within 1h")}
    record(pipeline, 0, replay)
    record(pipeline, 1, LandedReplay(failures=replay.failures))
    decided = quarantine.decisions(pipeline)
    assert decided.replays.keys() == {GOOD, EMPTY}
    assert decided.failures[BAD].detail == "2026\ufffd is not within 1h"
    with session() as ledger:
        notes = select(func.count()).where(QuarantineNote.pipeline == pipeline)
        assert ledger.scalar(notes) == 1


def test_failure_is_recorded_again_only_when_it_differs(pipeline: str) -> None:
    failing = LandedReplay(failures={BAD: ("not_json", "at byte 7")})
    for _ in range(2):
        record(pipeline, quarantine.next_replay(pipeline), failing)
    for _ in range(2):
        record(pipeline, 0, LandedReplay(failures={BAD: ("not_json", "at byte 8")}))
    assert quarantine.decisions(pipeline).failures[BAD].detail == "at byte 8"
    with session() as ledger:
        notes = select(func.count()).where(QuarantineNote.pipeline == pipeline)
        assert ledger.scalar(notes) == 2


def test_replay_is_refused_when_another_decision_is_under_way(postgres: Home, pipeline: str) -> None:
    with quarantine.deciding(pipeline):
        assert quarantine.is_being_decided(pipeline)
        with pytest.raises(AnotherWriter, match="under way"), quarantine.deciding(pipeline, timedelta(0)):
            pass
    # Who only looks takes no lock: a replay or a merge that begins meanwhile would be refused.
    with statements_of(engine()) as sent:
        assert not quarantine.is_being_decided(pipeline)
    assert [each for each in sent if "advisory_lock" in each] == []


def deliver(pipeline: str, number: int, *ranges: OffsetRange, delivers_replays: bool = True) -> list[str]:
    """Pin an hour, and return the files of the replays that it delivers."""
    known = find_neighbours(pipeline, hour(number))
    facts: dict[str, Any] = {"pinned_by": "test", "between": known, "delivers_replays": delivers_replays}
    topic_ids = {each.topic_partition.topic: each.topic_id for each in ranges}
    pinned = write_interval(pipeline, hour(number), ranges, topic_ids, **facts)
    assert pinned is not None
    return [path.rsplit("/", 2)[1] for path in quarantine.replayed_into(pinned.id).paths]


def test_replay_waits_for_an_interval_that_was_asked_for_when_others_are_pinned_on_the_way(pipeline: str) -> None:
    record(pipeline, 0, landed(f"landing/{pipeline}/replay-0/part.parquet"))
    delivered = [deliver(pipeline, number, delivers_replays=number == 1) for number in range(3)]
    assert delivered == [[], ["replay-0"], []]


def test_interval_counts_the_records_with_rows_that_it_delivers_and_names_the_first(pipeline: str) -> None:
    keys = [RecordKey("events", "id", partition, offset) for partition, offset in ((1, 3), (0, 10), (0, 9))]
    files = [LandingFile("archived", f"landing/{pipeline}/replay-0/part.parquet", 3, 9)]
    record(pipeline, 0, LandedReplay({**dict.fromkeys(keys, "archived"), EMPTY: "empty"}, {}, files))
    assert deliver(pipeline, 0) == ["replay-0"]
    found = find_interval(pipeline, hour(0).from_time)
    assert found is not None
    into = quarantine.replayed_into(found.id)
    assert (into.records, into.first) == (3, keys[2])
    assert quarantine.replays_into([]) == ReplayedInto(0, None, [])


def test_replay_waits_while_another_record_is_at_its_coordinates_when_a_topic_was_created_again(pipeline: str) -> None:
    for number, topic_id in enumerate(("first", "second", "third")):
        key = RecordKey("events", topic_id, 0, 5)
        files = [LandingFile("archived", f"landing/{pipeline}/replay-{number}/part.parquet", 1, 9)]
        record(pipeline, number, LandedReplay({key: "archived"}, {}, files))
    delivered = [deliver(pipeline, n, replace(span(n * 4, n * 4 + 4), topic_id="third")) for n in range(4)]
    assert delivered == [["replay-0"], [], ["replay-1"], ["replay-2"]]


def test_interval_is_not_pinned_again_when_it_would_hold_two_records_at_the_coordinates_of_a_replay(
    pipeline: str,
) -> None:
    key = RecordKey("events", "first", 0, 5)
    files = [LandingFile("archived", f"landing/{pipeline}/replay-0/part.parquet", 1, 9)]
    record(pipeline, 0, LandedReplay({key: "archived"}, {}, files))
    assert deliver(pipeline, 0, replace(span(0, 4), topic_id="second")) == ["replay-0"]
    pinned = last_interval(pipeline)
    assert pinned is not None
    with pytest.raises(UsageError, match="cannot be pinned again: it delivers the replay of events-0 offset 5"):
        replace_ranges(pinned, [span(0, 6)], repinned_by="test")
    assert last_interval(pipeline) == pinned
    assert replace_ranges(pinned, [span(0, 5)], repinned_by="test") is not None
