"""Until when tables and topic partitions are complete, from what the ledger holds of intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from include.intervals.rest import rest_of
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.completeness import Completeness, completeness, partition_completeness
from include.ledger.database import session
from include.ledger.intervals import attempts, pins
from include.ledger.models import Build, Revision
from include.ledger.streams import generations
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.times import Interval
from tests.conftest import Home
from tests.support.attempts import TOPIC, begin_attempt, build_and_register, hour, note_build, register
from tests.support.leases import held_lease

pytestmark = [pytest.mark.services]

BEGIN = hour(0).from_time


def run(pipeline: str, number: int, *, topic_partitions: int = 2) -> int:
    """Run an hour to its registration."""
    return build_and_register(pipeline, hour(number), topic_partitions=topic_partitions)


def fail(attempt: int) -> None:
    """End an attempt whose checkpoint did not pass."""
    note_build(attempt)
    attempts.end_attempt(attempt, 2, {})


def pin(pipeline: str, number: int, *offsets: tuple[int, int], topic_id: str = "id") -> int:
    """Pin an hour to these offsets of the topic partitions 0, 1, …, and begin an attempt."""
    ranges = [OffsetRange(TopicPartition(TOPIC, p), *each, topic_id) for p, each in enumerate(offsets)]
    between = pins.find_neighbours(pipeline, hour(number))
    pinned = pins.write_interval(pipeline, hour(number), ranges, {TOPIC: topic_id}, pinned_by="test", between=between)
    assert pinned is not None
    return attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")


def until(pipeline: str, since: datetime | None = None) -> datetime | None:
    return completeness(pipeline, since).complete_until


def of_partitions(pipeline: str) -> list[tuple[int, datetime | None, int]]:
    found = partition_completeness(pipeline)
    return [(each.topic_partition.partition, each.complete_until, each.complete_offset) for each in found]


def test_nothing_is_complete_when_nothing_is_registered(pipeline: str) -> None:
    assert completeness(pipeline) == Completeness(pipeline)
    assert partition_completeness(pipeline) == []
    begin_attempt(pipeline)
    found = completeness(pipeline)
    assert (found.complete_from, found.complete_until) == (None, None)
    assert not found.reaches(BEGIN)
    assert found.waits_for is not None
    assert (found.waits_for.kind, found.waits_for.to_time) == ("pinned", hour(0).to_time)
    assert of_partitions(pipeline) == [(0, None, 0), (1, None, 0)]


def test_intervals_are_complete_when_they_are_consecutive_and_registered(pipeline: str) -> None:
    run(pipeline, 0)
    run(pipeline, 1)
    found = completeness(pipeline)
    assert found == Completeness(pipeline, BEGIN, hour(1).to_time, None)
    assert found.reaches(hour(1).to_time)
    assert not found.reaches(hour(2).to_time)
    assert of_partitions(pipeline) == [(0, hour(1).to_time, 200), (1, hour(1).to_time, 200)]


@pytest.mark.parametrize("kind", ["pinned", "failed"])
def test_later_intervals_are_held_up_when_one_is_open(pipeline: str, kind: str) -> None:
    run(pipeline, 0)
    attempt = begin_attempt(pipeline, hour(1))
    if kind == "failed":
        fail(attempt)
    run(pipeline, 2)
    found = completeness(pipeline)
    assert found.complete_until == hour(0).to_time
    assert found.waits_for is not None
    assert (found.waits_for.kind, found.waits_for.from_time) == (kind, hour(1).from_time)
    assert str(found).endswith(f"waits for 2026-11-20T06:00:00Z to 2026-11-20T07:00:00Z, which is {kind}")
    assert of_partitions(pipeline)[0] == (0, hour(0).to_time, 100)
    run(pipeline, 1)
    assert until(pipeline) == hour(2).to_time


def test_time_that_nobody_pinned_holds_up_when_offsets_lie_in_it(pipeline: str) -> None:
    run(pipeline, 0)
    run(pipeline, 3)
    found = completeness(pipeline)
    assert found.complete_until == hour(0).to_time
    assert found.waits_for is not None
    assert (found.waits_for.kind, found.waits_for.from_time, found.waits_for.to_time) == (
        "missing", hour(1).from_time, hour(2).to_time,
    )  # fmt: skip
    assert of_partitions(pipeline) == [(0, hour(0).to_time, 100), (1, hour(0).to_time, 100)]


def test_hours_adjoin_when_they_were_pinned_in_any_order(postgres: Home, pipeline: str) -> None:
    question = "SELECT from_time, adjoins FROM intervals WHERE pipeline = %s ORDER BY from_time"
    for number, adjoining in ((3, []), (0, []), (2, [3]), (5, [3]), (1, [1, 2, 3])):
        run(pipeline, number)
        found = [begin for begin, adjoins in postgres.ledger(question, pipeline) if adjoins]
        assert found == [hour(each).from_time for each in adjoining]
    assert until(pipeline) == hour(3).to_time


def test_nothing_is_held_up_when_unpinned_hours_were_quiet(pipeline: str) -> None:
    run(pipeline, 0)
    attempt = pin(pipeline, 3, (100, 150), (100, 100))
    assert until(pipeline) == hour(0).to_time
    register(attempt, note_build(attempt))
    assert until(pipeline) == hour(3).to_time


def test_topic_partition_is_complete_when_it_is_quiet_and_its_end_was_pinned(pipeline: str) -> None:
    run(pipeline, 0)
    pin(pipeline, 1, (100, 150), (100, 100))
    assert until(pipeline) == hour(0).to_time
    assert of_partitions(pipeline) == [(0, hour(0).to_time, 100), (1, hour(1).to_time, 100)]


def test_topic_partition_is_complete_from_its_beginning_when_it_was_added_later(pipeline: str) -> None:
    run(pipeline, 0)
    attempt = pin(pipeline, 1, (100, 110), (100, 110), (0, 7))
    assert of_partitions(pipeline)[2] == (2, hour(0).to_time, 0)
    register(attempt, note_build(attempt))
    assert of_partitions(pipeline)[2] == (2, hour(1).to_time, 7)
    # Its first offsets lie in an hour that nobody pinned.
    attempt = pin(pipeline, 3, (110, 120), (110, 120), (7, 9), (5, 6))
    register(attempt, note_build(attempt))
    assert of_partitions(pipeline)[3] == (3, hour(1).to_time, 0)
    assert until(pipeline) == hour(1).to_time


def test_topic_begins_again_when_it_was_created_again(pipeline: str) -> None:
    run(pipeline, 0)
    attempt = pin(pipeline, 2, (30, 40), topic_id="another")
    register(attempt, note_build(attempt))
    assert until(pipeline) == hour(2).to_time
    assert of_partitions(pipeline) == [(0, hour(2).to_time, 40)]


def test_interval_stays_complete_when_it_is_run_again(pipeline: str) -> None:
    run(pipeline, 0)
    run(pipeline, 1)
    again = begin_attempt(pipeline, hour(0))
    assert until(pipeline) == hour(1).to_time
    fail(again)
    assert until(pipeline) == hour(1).to_time
    run(pipeline, 0)
    assert until(pipeline) == hour(1).to_time


def test_interval_is_open_until_its_run_when_it_is_pinned_again(pipeline: str) -> None:
    run(pipeline, 0)
    attempt = run(pipeline, 1)
    pinned = attempts.load_attempt(attempt).pinned
    wider = [OffsetRange(r.topic_partition, r.from_offset, r.until_offset + 10, r.topic_id) for r in pinned.ranges]
    assert pins.replace_ranges(pinned, wider, repinned_by="test") is not None
    assert until(pipeline) == hour(0).to_time
    run(pipeline, 1)
    assert until(pipeline) == hour(1).to_time
    assert of_partitions(pipeline)[0] == (0, hour(1).to_time, 210)


def test_older_gap_holds_nothing_up_when_asked_since_a_later_time(pipeline: str) -> None:
    for number in (0, 2, 3):
        run(pipeline, number)
    begin_attempt(pipeline, hour(5))
    assert until(pipeline) == hour(0).to_time
    assert completeness(pipeline, hour(2).from_time).complete_from == hour(2).from_time
    assert until(pipeline, hour(2).from_time) == hour(3).to_time
    assert until(pipeline, hour(3).from_time) == hour(3).to_time
    # In the gap nothing is registered, and before the first interval there is nothing.
    assert until(pipeline, hour(1).from_time) is None
    assert until(pipeline, hour(5).from_time) is None
    assert until(pipeline, hour(9).from_time) is None
    assert until(pipeline, hour(-1).from_time) is None


def test_views_answer_by_table_when_sql_asks(postgres: Home, pipeline: str) -> None:
    run(pipeline, 0)
    question = "SELECT complete_from, complete_until, waits_for FROM table_completeness WHERE table_name = %s"
    assert postgres.ledger(question, pipeline) == [(BEGIN, hour(0).to_time, None)]
    begin_attempt(pipeline, hour(1))
    run(pipeline, 2)
    assert postgres.ledger(question, pipeline) == [(BEGIN, hour(0).to_time, "pinned")]
    assert postgres.ledger(question, "no_table") == []
    # A table whose first partitions came after the hole.
    run_by(pipeline, 2, "later")
    assert postgres.ledger(question, "later") == [(None, None, "pinned")]


def run_by(pipeline: str, number: int, view: str, *, declared: bool = True, rows: bool = True) -> None:
    """Run an hour to its registration by code that declares the view or not, and that finds rows of it or not."""
    attempt = begin_attempt(pipeline, hour(number))
    built = note_build(attempt)
    with session() as ledger:
        build = ledger.query(Build).filter_by(attempt_id=attempt).one()
        build.columns = {table: {"count": "bigint"} for table in (pipeline, *((view,) if declared else ()))}
        if declared and rows:
            ledger.query(Revision).filter_by(attempt_id=attempt).one().table_name = view
            built = replace(built, table=view)
    register(attempt, built)


def of_table(home: Home, table: str) -> tuple[object, ...]:
    [found] = home.ledger("SELECT complete_from, complete_until FROM table_completeness WHERE table_name = %s", table)
    return found


def test_view_is_complete_from_where_all_hours_have_it_when_it_was_declared_later(
    postgres: Home, pipeline: str
) -> None:
    view = f"{pipeline}_counts"
    for number in range(5):
        run_by(pipeline, number, view, declared=number >= 3)
    assert of_table(postgres, view) == (hour(3).from_time, hour(4).to_time)
    # An older hour has it now, the one between does not.
    run_by(pipeline, 1, view)
    assert of_table(postgres, view) == (hour(3).from_time, hour(4).to_time)
    run_by(pipeline, 2, view, rows=False)
    assert of_table(postgres, view) == (hour(1).from_time, hour(4).to_time)
    # By older code again.
    run_by(pipeline, 4, view, declared=False)
    assert of_table(postgres, view) == (None, None)
    run_by(pipeline, 5, view)
    assert of_table(postgres, view) == (hour(5).from_time, hour(5).to_time)


def test_view_is_complete_from_the_first_hour_that_had_no_row_of_it(postgres: Home, pipeline: str) -> None:
    view = f"{pipeline}_counts"
    run_by(pipeline, 0, view, rows=False)
    fail(begin_attempt(pipeline, hour(1)))
    run_by(pipeline, 2, view)
    assert of_table(postgres, view) == (BEGIN, hour(0).to_time)
    run_by(pipeline, 1, view, rows=False)
    assert of_table(postgres, view) == (BEGIN, hour(2).to_time)


def test_view_is_not_complete_from_a_later_hour_when_the_first_one_failed(postgres: Home, pipeline: str) -> None:
    view = f"{pipeline}_counts"
    fail(begin_attempt(pipeline, hour(0)))
    run_by(pipeline, 1, view)
    run_by(pipeline, 2, view)
    question = (
        "SELECT complete_from, complete_until, waits_for, waits_from FROM table_completeness WHERE table_name = %s"
    )
    assert postgres.ledger(question, view) == [(None, None, "failed", BEGIN)]


def test_answer_is_quick_when_there_is_a_year_of_hours(postgres: Home, pipeline: str) -> None:
    fill = """
    INSERT INTO intervals (pipeline, from_time, to_time, pinned_by, state, adjoins)
      SELECT %s, '2025-01-01Z'::timestamptz + h * interval '1 hour',
        '2025-01-01Z'::timestamptz + (h + 1) * interval '1 hour', 'test', 'registered', h > 0
      FROM generate_series(0, 8759) h;
    INSERT INTO interval_ranges (interval_id, topic, topic_partition, topic_id, from_offset, until_offset)
      SELECT i.id, 't', p, 'id', extract(epoch FROM from_time), extract(epoch FROM to_time)
      FROM intervals i, generate_series(0, 9) p WHERE i.pipeline = %s;
    ANALYZE interval_ranges;
    SELECT 1"""
    postgres.ledger(fill, pipeline, pipeline)
    plan = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM topic_partition_completeness WHERE pipeline = %s"
    [(found,)] = postgres.ledger(plan, pipeline)
    assert isinstance(found, list)
    assert found[0]["Execution Time"] < 500
    assert {each.complete_until for each in partition_completeness(pipeline)} == {until(pipeline)}


def archive(pipeline: str, number: int, *ranges: OffsetRange) -> None:
    topics = {r.topic_partition.topic: TopicIdentity(r.topic_partition.topic, r.topic_id, 1) for r in ranges}
    with held_lease(pipeline) as lease:
        micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, topics))


def of_topic(topic: str, begin: int, end: int, topic_id: str) -> OffsetRange:
    return OffsetRange(TopicPartition(topic, 0), begin, end, topic_id)


def adopt(pipeline: str, topic_id: str, begins: dict[str, int]) -> Interval:
    """Adopt topic `a` as it was created again, and return the interval with its rest."""
    left = rest_of(replace(load_pipeline("isp_hits"), name=pipeline), "a")
    assert left is not None
    ranges = [of_topic("a", begins["a"], begins["a"], topic_id), of_topic("b", begins["b"], begins["b"], "b-1")]
    with held_lease(pipeline) as lease:
        successor = TopicIdentity("a", topic_id, 1)
        generations.open_with_topic(lease, successor, left, ranges, adopted_by="test", reason="created again")
    return left.interval


def test_hour_with_the_rest_of_a_topic_is_complete_once_the_next_one_is_registered(pipeline: str) -> None:
    """Of topics `a` and `b`; what follows of both in that hour is pinned with the next one."""
    pipeline = f"t_{pipeline[-8:]}"
    archive(pipeline, 0, of_topic("a", 0, 10, "a-1"), of_topic("b", 0, 10, "b-1"))
    ids, first = {"a": "a-1", "b": "b-1"}, [of_topic("a", 0, 5, "a-1"), of_topic("b", 0, 5, "b-1")]
    between = pins.find_neighbours(pipeline, hour(0))
    pins.write_interval(pipeline, hour(0), first, ids, pinned_by="test", between=between)
    build_and_register(pipeline, hour(0))
    assert adopt(pipeline, "a-2", {"a": 0, "b": 10}) == hour(1)
    build_and_register(pipeline, hour(1))
    found = completeness(pipeline)
    assert found.complete_until == hour(1).from_time
    assert str(found).endswith("which is the rest of a deleted topic, completed by the next interval")
    assert {each.complete_until for each in partition_completeness(pipeline)} == {hour(1).from_time}

    archive(pipeline, 1, of_topic("a", 0, 7, "a-2"), of_topic("b", 10, 20, "b-1"))
    # Created again once more: that rest completes nothing either.
    assert adopt(pipeline, "a-3", {"a": 0, "b": 20}) == hour(2)
    build_and_register(pipeline, hour(2))
    assert until(pipeline) == hour(1).from_time

    archive(pipeline, 2, of_topic("a", 0, 4, "a-3"), of_topic("b", 20, 30, "b-1"))
    ids, last = {"a": "a-3", "b": "b-1"}, [of_topic("a", 0, 4, "a-3"), of_topic("b", 5, 30, "b-1")]
    between = pins.find_neighbours(pipeline, hour(3))
    pins.write_interval(pipeline, hour(3), last, ids, pinned_by="test", between=between)
    assert until(pipeline) == hour(1).from_time
    build_and_register(pipeline, hour(3))
    assert until(pipeline) == hour(3).to_time
    assert {each.complete_until for each in partition_completeness(pipeline)} == {hour(3).to_time}
