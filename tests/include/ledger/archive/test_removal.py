"""What the ledger says about landing that was removed, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.errors import TidemarkError, UsageError
from include.intervals.pinning import check_repin
from include.intervals.rebuild import notes
from include.ledger.archive import holdings, landing_files, removal
from include.ledger.database import session
from include.ledger.intervals import pins
from include.ledger.intervals.states import Source
from include.ledger.models import SPAN, IntervalRange, MicroBatch, Position, Topic
from include.ledger.streams import generations
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, TopicIdentity
from include.pipelines import load_pipeline
from include.times import Interval
from tests.conftest import Home
from tests.support.committed import DAY, TP, commit, register, span
from tests.support.leases import held_lease
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services


def settled_until(pipeline: str, until: datetime) -> dict[int, list[OffsetRange]]:
    portions = removal.settled_batches(pipeline, until, ("archived",))
    return {batch: ranges for portion in portions for batch, ranges in portion.items()}


def test_batch_is_settled_only_when_all_its_offsets_lie_in_registered_intervals(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    register(pipeline, 1, 10, 20)
    register(pipeline, 2, 20, 30, state="pinned")
    inside = commit(pipeline, 0, 0, 8, archived=3)
    across_registered = commit(pipeline, 1, 8, 15, archived=3)
    commit(pipeline, 2, 15, 25, archived=3)
    commit(pipeline, 3, 25, 30, archived=3)
    settled = settled_until(pipeline, datetime.now(UTC))
    assert settled == {inside: [span(0, 8)], across_registered: [span(8, 15)]}
    assert settled_until(pipeline, DAY) == {}


def test_each_batch_is_settled_once_when_they_are_more_than_a_portion(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After missed runs of housekeeping all are due at once, more than fit into memory."""
    monkeypatch.setattr(removal, "_AT_ONCE", 2)
    register(pipeline, 0, 0, 40)
    register(pipeline, 1, 60, 90)
    batches = [commit(pipeline, number, 10 * number, 10 * number + 10, archived=3) for number in range(9)]
    removal.mark_removed(pipeline, [batches[1]])
    found = []
    for portion in removal.settled_batches(pipeline, datetime.now(UTC), ("archived",)):
        found.append([*portion])
        assert removal.mark_removed(pipeline, portion) == portion.keys()
    # Two of them, the fifth and the sixth, lie in no registered interval.
    assert found == [[batches[0], batches[2]], [batches[3]], [batches[6]], [batches[7], batches[8]]]
    assert settled_until(pipeline, datetime.now(UTC)) == {}


def test_batch_is_not_settled_when_its_offsets_are_registered_of_another_incarnation_of_the_topic(
    pipeline: str,
) -> None:
    interval = register(pipeline, 0, 0, 10)
    commit(pipeline, 0, 0, 8, archived=3)
    with session() as ledger:
        ledger.get_one(IntervalRange, (interval, "events", 0)).topic_id = "newer"
    assert settled_until(pipeline, datetime.now(UTC)) == {}


def test_files_of_earlier_commits_are_not_named_when_a_time_is_given(pipeline: str) -> None:
    earlier, later = (commit(pipeline, number, 4 * number, 4 * number + 4, archived=2) for number in (0, 1))
    with session() as ledger:
        ledger.get_one(MicroBatch, earlier).committed_at = DAY - timedelta(seconds=1)
        ledger.get_one(MicroBatch, later).committed_at = DAY
    both = landing_files.files_covering(pipeline, [span(0, 8)], "archived")
    assert len(both) == 2
    (named,) = landing_files.files_covering(pipeline, [span(0, 8)], "archived", committed_from=DAY)
    assert [named] == [each.path for each in landing_files.files_of([later], ["archived"])]
    assert landing_files.files_covering(pipeline, [span(0, 4)], "archived", committed_from=DAY) == []


def test_offsets_are_read_from_intervals_and_no_file_is_named_when_they_were_removed(pipeline: str) -> None:
    first, second = register(pipeline, 0, 0, 10), register(pipeline, 1, 10, 20)
    batches = [commit(pipeline, 0, 0, 4, archived=2), commit(pipeline, 1, 4, 6, empty=2)]
    batches += [commit(pipeline, 2, 6, 12, archived=2)]
    commit(pipeline, 3, 12, 20, archived=2)
    assert removal.removed_ranges(pipeline, [span(0, 20)]) == []
    removal.mark_removed(pipeline, [batches[0], batches[2]])
    # The batch without archived rows lies between two removed ones: one range.
    assert removal.removed_ranges(pipeline, [span(0, 20)]) == [span(0, 12)]
    assert removal.removed_ranges(pipeline, [span(2, 8)]) == [span(2, 8)]
    assert removal.removed_ranges(pipeline, [span(12, 20)]) == []
    left = landing_files.files_covering(pipeline, [span(0, 20)], "archived")
    assert left == [f"landing/{pipeline}/3/fate=archived/part.parquet"]
    found = holdings.holdings(pipeline, "no_table", [span(0, 12)])
    assert [(h.interval_id, h.ranges) for h in found] == [(first, (span(0, 10),)), (second, (span(10, 12),))]


def test_offsets_without_rows_are_not_among_the_removed_ones_when_nothing_removed_follows_them(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    removed = commit(pipeline, 0, 0, 4, archived=2)
    commit(pipeline, 1, 4, 6, empty=2)
    commit(pipeline, 2, 6, 10, archived=2)
    removal.mark_removed(pipeline, [removed])
    assert removal.removed_ranges(pipeline, [span(0, 10)]) == [span(0, 4)]
    assert removal.removed_ranges(pipeline, [span(0, 6)]) == [span(0, 4)]


def test_removed_offsets_are_an_error_when_no_registered_interval_has_them(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    with pytest.raises(TidemarkError, match=r"events-0 \[5, 12\)"):
        holdings.holdings(pipeline, "no_table", [span(5, 12)])


def test_interval_is_not_pinned_again_when_its_landing_was_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    removal.mark_removed(pipeline, [commit(pipeline, 0, 0, 10, archived=2)])
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    assert pinned.interval == Interval(DAY, DAY + timedelta(hours=1))
    with pytest.raises(UsageError, match="were removed"):
        check_repin(replace(load_pipeline("nest_cameras"), name=pipeline), pinned)


def test_landing_stays_when_its_interval_is_pinned_again_before_it_is_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = commit(pipeline, 0, 0, 10, archived=2)
    settled = settled_until(pipeline, datetime.now(UTC))
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    assert pins.replace_ranges(pinned, [span(0, 12)], repinned_by="test") is not None
    assert settled.keys() == {batch}
    assert removal.mark_removed(pipeline, settled) == set()
    assert removal.removed_ranges(pipeline, [span(0, 10)]) == []


def test_interval_stays_as_it_is_when_its_landing_is_removed_before_it_is_pinned_again(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = commit(pipeline, 0, 0, 10, archived=2)
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    check_repin(replace(load_pipeline("nest_cameras"), name=pipeline), pinned)
    assert removal.mark_removed(pipeline, [batch]) == {batch}
    assert pins.replace_ranges(pinned, [span(0, 12)], repinned_by="test") is None
    assert pins.find_interval(pipeline, DAY) == pinned


def read_topic(pipeline: str, until: int) -> TopicIdentity:
    """The topic and position that the archive's commits leave, and the topic after it was created again."""
    with session() as ledger:
        ledger.add(Topic(pipeline=pipeline, topic="events", topic_id="id", topic_partitions=1))
        position = {"topic": "events", "topic_partition": 0, "next_offset": until, "micro_batch_id": 0}
        ledger.add(Position(pipeline=pipeline, query="archive", **position))
    return TopicIdentity("events", "other", 1)


def adopt(pipeline: str, successor: TopicIdentity, begin_at: int = 0, rest: generations.Rest | None = None) -> None:
    with held_lease(pipeline) as lease:
        begin = OffsetRange(TP, begin_at, begin_at, successor.topic_id)
        generations.open_with_topic(lease, successor, rest, [begin], adopted_by="test", reason="test")


def remove_landing(pipeline: str) -> None:
    assert removal.mark_removed(pipeline, [commit(pipeline, 0, 0, 10, archived=2)])


def pin_again(pipeline: str) -> None:
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    assert pins.replace_ranges(pinned, [span(0, 12)], repinned_by="test")


def adopt_successor(pipeline: str) -> None:
    adopt(pipeline, read_topic(pipeline, 10))


@pytest.mark.parametrize("change", [remove_landing, pin_again, adopt_successor])
def test_change_waits_when_another_transaction_pins(postgres: Home, change: Callable[[str], None]) -> None:
    pipeline = change.__name__
    register(pipeline, 0, 0, 10)
    query = waits_with(lambda: change(pipeline), lambda ledger: pins.lock_pinning(ledger, pipeline))
    assert "pg_advisory_xact_lock" in query


def test_landing_stays_when_its_topic_was_adopted_anew_before_it_is_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = commit(pipeline, 0, 0, 10, archived=2)
    successor = read_topic(pipeline, 10)
    settled = settled_until(pipeline, datetime.now(UTC))
    adopt(pipeline, successor)
    assert settled.keys() == {batch}
    assert removal.mark_removed(pipeline, settled) == set()
    assert removal.removed_ranges(pipeline, [span(0, 10)]) == []


def test_topic_is_not_adopted_when_its_landing_is_removed_before(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = commit(pipeline, 0, 0, 10, archived=2)
    successor = read_topic(pipeline, 10)
    generations.check_landing(pipeline, "events", {})
    assert removal.mark_removed(pipeline, [batch]) == {batch}
    for begin in (0, 9):
        with pytest.raises(UsageError, match="were removed"):
            adopt(pipeline, successor, begin)
    with pytest.raises(UsageError, match="were removed"):
        # A topic partition that it lacks may be added to it later.
        generations.check_landing(pipeline, "events", {})
    assert closed(pipeline) == frozenset()
    # From there on, no row has the offset of one whose landing was removed.
    adopt(pipeline, successor, 10)
    assert closed(pipeline) == {"id"}


@pytest.mark.parametrize("pinned", [0, 1], ids=["the same hour", "a later one"])
def test_topic_is_not_adopted_when_the_rest_of_its_records_was_pinned_meanwhile(pipeline: str, pinned: int) -> None:
    successor = read_topic(pipeline, 10)
    rest = generations.Rest(Interval(DAY, DAY + timedelta(hours=1)), [span(0, 10)], {"events": "id"})
    register(pipeline, pinned, 0, 10)
    with pytest.raises(TidemarkError, match="was pinned meanwhile; the topic was not adopted"):
        adopt(pipeline, successor, rest=rest)
    assert closed(pipeline) == frozenset()
    assert generations.current(pipeline) is None


def test_rebuild_says_what_it_compares_with_when_landing_was_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = commit(pipeline, 0, 0, 10, archived=2)
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    assert list(notes(pinned, Source.ARCHIVE)) == []
    removal.mark_removed(pipeline, [batch])
    assert list(notes(pinned, Source.KAFKA)) == []
    [told] = notes(pinned, Source.ARCHIVE)
    assert told.startswith(
        "the landing files of 10 offsets, first events-0 [0, 10), were removed: their rows were read"
    )
    # No broker runs here.
    assert "whether Kafka holds the interval is not known" in told


def test_files_of_old_offsets_are_found_by_the_index_when_much_came_after(pipeline: str) -> None:
    with session() as ledger:
        connection = ledger.connection()
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = connection.exec_driver_sql(f"EXPLAIN SELECT 1 FROM micro_batch_ranges WHERE {SPAN} && numrange(5, 9)")
        assert any("ix_micro_batch_ranges_span" in line for (line,) in plan)
