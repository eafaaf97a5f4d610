"""Whose code's rows the archive has where landing was removed and the interval was run again, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import inspect, select

from include.ledger.archive import removal
from include.ledger.archive.decoders import decoded_otherwise, decoders_of, replaced_by_other_code
from include.ledger.archive.other_code import other_code
from include.ledger.database import engine, session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes, Registration
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.intervals.revisions import decoders_of_content
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Build, IntervalRange, IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange
from include.reconciliation import ReconciliationCounts
from tests.support.committed import DAY, TP, commit, register, span
from tests.support.ledger_reads import rows_fetched, statements_of
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services


def land(pipeline: str, number: int, begin: int, until: int, version: str | None, hour: int = 0) -> int:
    """A micro-batch of that code, with a row for each record, of the first minutes of the hour's interval."""
    start = DAY + timedelta(hours=hour)
    batch = commit(pipeline, number, begin, until, archived=until - begin)
    with session() as ledger:
        ledger.get_one(MicroBatch, batch).decoder_version = version
        file = ledger.query(LandingFileRow).filter_by(micro_batch_id=batch).one()
        file.event_time_min, file.event_time_max = start, start + timedelta(minutes=5)
    return batch


def begin_publishing(pipeline: str, *versions: str, change: str = "points", hour: int = 0) -> Registration:
    """Build the interval with rows that the versions decoded, up to the last step of its registration."""
    pinned = pins.find_interval(pipeline, DAY + timedelta(hours=hour))
    assert pinned is not None
    spec = attempts.load_attempt(attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka"))
    built = BuiltRevision(pipeline, f"date={spec.id}", f"r-{spec.id}", "file:///nowhere", 10, "00", {})
    findings = BuildFindings(
        pinned.ranges,
        {TP: FateCounts(10, 0, 0, 0)},
        RecordCounts(in_ranges=10, archived=10),
        ReconciliationCounts(matched=10),
        decoder_versions=versions,
    )
    builds.note_build(spec, [built], findings)
    spec = attempts.load_attempt(spec.id)
    return builds.begin_registration(spec, Validation(True, pipeline), Changes(**{change: (built,)}))


def publish(pipeline: str, *versions: str, change: str = "points", hour: int = 0) -> None:
    builds.finish_registration(begin_publishing(pipeline, *versions, change=change, hour=hour))


def landed_and_removed(pipeline: str, hour: int = 0, batches: int = 1) -> None:
    """An interval of ten offsets that the first version landed and built, without landing."""
    at, each = 10 * hour, 10 // batches
    register(pipeline, hour, at, at + 10)
    begins = range(at, at + 10, each)
    landed = {land(pipeline, begin, begin, begin + each, "first", hour) for begin in begins}
    publish(pipeline, "first", hour=hour)
    assert removal.mark_removed(pipeline, landed) == landed


def widen(pipeline: str, partitions: range) -> None:
    """Give all micro-batches and intervals the offsets that they have of topic partition 0 in these, too."""
    batches = select(MicroBatchRange).join(MicroBatch, MicroBatch.id == MicroBatchRange.micro_batch_id)
    batches = batches.where(MicroBatch.pipeline == pipeline, MicroBatchRange.topic_partition == 0)
    intervals = select(IntervalRange).join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
    intervals = intervals.where(IntervalRow.pipeline == pipeline, IntervalRange.topic_partition == 0)
    with session() as ledger:
        for row in (*ledger.scalars(batches), *ledger.scalars(intervals)):
            known = {
                c.key: value for c in inspect(row).mapper.column_attrs if (value := getattr(row, c.key)) is not None
            }
            ledger.add_all(type(row)(**{**known, "topic_partition": each}) for each in partitions)


def touches(pipeline: str, ranges: tuple[int, int], minute: int, until: timedelta = timedelta(hours=1)) -> bool:
    """Whether other code than the first took part in the window of a minute, for an interval with these offsets."""
    start = DAY + timedelta(minutes=minute)
    by = {"version": 0, "landed_by": "first", "counted_by": "view"}
    return other_code(pipeline, "view", [span(*ranges)], (DAY, DAY + until), **by).touches(
        start, start + timedelta(minutes=1)
    )


def cost(action: Callable[[], object]) -> tuple[int, int]:
    """How many statements the action sends, and how many rows these bring."""
    with statements_of(engine()) as sent, rows_fetched(engine()) as rows:
        action()
    return len(sent), sum(rows)


def facts(pipeline: str) -> tuple[list[OffsetRange], list[OffsetRange], list[str]]:
    """What other code replaced, what the first version did not decode, and who decoded the rows."""
    ranges = [span(0, 10)]
    return (
        replaced_by_other_code(pipeline, ranges),
        decoded_otherwise(pipeline, ranges, "first"),
        decoders_of(pipeline, ranges),
    )


def test_rows_are_of_the_last_code_that_changed_them_when_landing_was_removed_before(pipeline: str) -> None:
    landed_and_removed(pipeline)
    assert facts(pipeline) == ([], [], ["first"])
    publish(pipeline, "second")
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])
    # Its other records are those that the first one landed.
    assert decoded_otherwise(pipeline, [span(0, 10)], "second") == [span(0, 10)]
    # What gives the same rows leaves the registered ones.
    publish(pipeline, "third", change="kept")
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])
    publish(pipeline, "first")
    assert facts(pipeline) == ([], [], ["first"])
    publish(pipeline, "second", change="kept")
    assert facts(pipeline) == ([], [], ["first"])


def test_rows_are_of_the_code_that_took_a_table_partition_away_when_landing_was_removed_before(pipeline: str) -> None:
    landed_and_removed(pipeline)
    begun = begin_publishing(pipeline, "second", change="kept")
    with session() as ledger:
        ledger.get_one(Build, begun.build).changes = {"points": [], "kept": [], "drops": [{"table": "any"}]}
    builds.finish_registration(begun)
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])


def test_rows_are_not_of_the_code_of_a_build_that_was_published_after_a_later_one_when_that_left_them_as_they_were(
    pipeline: str,
) -> None:
    interval = register(pipeline, 0, 0, 10)
    publish(pipeline, "first")
    too_late = begin_publishing(pipeline, "second").build
    builds.give_up(too_late)
    publish(pipeline, "third", change="kept")
    builds.note_replaced(attempts.of_build(too_late), Validation(True, pipeline))
    assert decoders_of_content(interval) == [{"third"}, {"first"}]


def test_rows_are_as_they_were_landed_when_landing_is_there(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "second")
    assert facts(pipeline) == ([], [], ["first"])


def test_only_removed_parts_are_replaced_when_some_landing_is_there(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    first, _ = land(pipeline, 0, 0, 4, "first"), land(pipeline, 1, 4, 10, "first")
    publish(pipeline, "first")
    assert removal.mark_removed(pipeline, [first]) == {first}
    publish(pipeline, "second")
    assert facts(pipeline) == ([span(0, 4)], [span(0, 4)], ["first", "second"])
    # From the archive: the removed part has the second's rows, and the other one the first's.
    publish(pipeline, "first", "second")
    assert facts(pipeline)[0] == [span(0, 4)]


def test_nothing_is_replaced_when_two_versions_landed_an_interval_that_was_built_from_the_archive(
    pipeline: str,
) -> None:
    register(pipeline, 0, 0, 10)
    batches = {land(pipeline, 0, 0, 4, "first"), land(pipeline, 1, 4, 10, None)}
    publish(pipeline, "first", "unknown")
    assert removal.mark_removed(pipeline, batches) == batches
    assert facts(pipeline) == ([], [span(4, 10)], ["first", "unknown"])


def test_window_is_of_other_code_when_its_removed_landing_was_replaced(pipeline: str) -> None:
    """Of the interval itself, and of another one whose rows it meets there."""

    landed_and_removed(pipeline)
    assert not touches(pipeline, (0, 10), 4)
    publish(pipeline, "second")
    assert touches(pipeline, (0, 10), 40)
    assert touches(pipeline, (10, 20), 4)
    assert not touches(pipeline, (10, 20), 40)


def test_only_windows_of_the_interval_that_other_code_built_are_its_when_landing_of_many_was_removed(
    pipeline: str,
) -> None:
    for hour in range(3):
        landed_and_removed(pipeline, hour, batches=5)
    publish(pipeline, "second", hour=1)
    assert [touches(pipeline, (30, 40), 60 * hour + 4, timedelta(hours=3)) for hour in range(3)] == [False, True, False]


def test_history_costs_nothing_when_the_code_that_landed_it_built_it(pipeline: str) -> None:
    """A record that is days late has a window there, and the driver must not read what lies between."""

    def late_window() -> None:
        assert not touches(pipeline, (100, 110), 4, timedelta(hours=10))

    landed_and_removed(pipeline, 0, batches=2)
    little = cost(late_window)
    for hour in range(1, 7):
        landed_and_removed(pipeline, hour, batches=10)
    assert cost(late_window) == little


def test_statements_grow_with_topic_partitions_alone_when_landing_of_many_intervals_was_removed(pipeline: str) -> None:
    def statements(partitions: int, hours: int = 2) -> int:
        ranges = [OffsetRange(replace(TP, partition=each), 0, 10 * hours) for each in range(partitions)]

        def ask() -> None:
            assert replaced_by_other_code(pipeline, ranges) == []
            assert decoded_otherwise(pipeline, ranges, "first") == []
            assert decoders_of(pipeline, ranges) == ["first"]

        return cost(ask)[0]

    for hour in range(2):
        landed_and_removed(pipeline, hour)
    found = [statements(1)]
    for more in (range(1, 4), range(4, 7)):
        widen(pipeline, more)
        found.append(statements(more[-1] + 1))
    assert found[2] - found[1] == found[1] - found[0]
    for hour in range(2, 6):
        landed_and_removed(pipeline, hour)
    assert statements(1, 6) == found[0]


def test_landing_stays_when_other_code_runs_the_interval_again_before_it_is_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "first")
    [settled] = removal.settled_batches(pipeline, datetime.now(UTC), ("archived",))
    publish(pipeline, "second")
    assert settled.keys() == {batch}
    assert removal.mark_removed(pipeline, settled) == set()
    assert removal.removed_ranges(pipeline, [span(0, 10)]) == []
    # It gave the rows that the landing has.
    publish(pipeline, "first")
    publish(pipeline, "second", change="kept")
    assert removal.mark_removed(pipeline, settled) == {batch}


def test_removal_waits_and_landing_stays_when_other_code_is_being_registered(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "first")
    begun, marked = begin_publishing(pipeline, "second"), []
    query = waits_with(
        lambda: marked.append(removal.mark_removed(pipeline, [batch])), lambda ledger: builds.finish(ledger, begun)
    )
    assert "FOR SHARE" in query
    assert marked == [set()]
