"""Time that nobody has pinned is missing, also of what came later, and so are intervals that were begun in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.doctor.examine import unregistered
from include.errors import TidemarkError
from include.intervals.boundaries import asked_interval
from include.intervals.missing import rest_before
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.completeness import completeness
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, locks, pins
from include.ledger.intervals.findings import Validation
from include.ledger.intervals.missing import MissingIntervals, missing_intervals
from include.ledger.intervals.pins import find_neighbours, write_interval
from include.ledger.models import Attempt, Position, Topic
from include.monitor.missing import building_commands, summarize_missing
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.times import Interval, every, format_time
from tests.conftest import Home
from tests.support.attempts import TOPIC, begin_attempt, build_and_register, hour, note_build, register
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

JOINED = "nest-logs-joined"
FAR = 60
"""More hours than one pinning fills."""


def archive(pipeline: str, number: int, *ranges: OffsetRange) -> None:
    """Commit a micro-batch of these ranges, each of a topic whose id is the range's."""
    topics = {r.topic_partition.topic: TopicIdentity(r.topic_partition.topic, r.topic_id, 2) for r in ranges}
    with held_lease(pipeline) as lease:
        micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, topics))


def build(pipeline: str, number: int, *ranges: OffsetRange) -> None:
    """Pin an hour to the ranges, and register it."""
    topic_ids = {r.topic_partition.topic: r.topic_id for r in ranges}
    between = find_neighbours(pipeline, hour(number))
    assert write_interval(pipeline, hour(number), ranges, topic_ids, pinned_by="test", between=between)
    build_and_register(pipeline, hour(number))


def span(partition: int, begin: int, until: int, topic: str = TOPIC, topic_id: str = "id") -> OffsetRange:
    return OffsetRange(TopicPartition(topic, partition), begin, until, topic_id)


def unpinned(offsets: int) -> MissingIntervals:
    return MissingIntervals(hour(0).to_time, hour(FAR).from_time, offsets, None)


def test_first_offsets_are_missing_when_a_topic_partition_was_added(pipeline: str) -> None:
    archive(pipeline, 0, span(0, 0, 12), span(1, 0, 7))
    build(pipeline, 0, span(0, 0, 10))
    build(pipeline, FAR, span(0, 10, 12), span(1, 5, 7))
    assert missing_intervals(pipeline) == [unpinned(5)]


def test_first_offsets_are_missing_from_the_archive_s_beginning_when_a_topic_joined(pipeline: str) -> None:
    archive(pipeline, 0, span(0, 0, 12), span(0, 3, 9, JOINED))
    build(pipeline, 0, span(0, 0, 10))
    build(pipeline, FAR, span(0, 10, 12), span(0, 7, 9, JOINED))
    assert missing_intervals(pipeline) == [unpinned(4)]
    waits = completeness(pipeline).waits_for
    assert completeness(pipeline).complete_until == hour(0).to_time
    assert waits is not None
    assert (waits.kind, waits.to_time) == ("missing", hour(FAR).from_time)
    # An hour between is pinned from the beginning on.
    build(pipeline, 1, span(0, 10, 10), span(0, 3, 7, JOINED))
    assert missing_intervals(pipeline) == []
    assert completeness(pipeline).complete_until == hour(FAR).to_time


def test_nothing_is_missing_of_what_came_later_when_it_is_pinned_from_its_beginning(pipeline: str) -> None:
    archive(pipeline, 0, span(0, 0, 10), span(1, 0, 7), span(0, 3, 9, JOINED))
    build(pipeline, 0, span(0, 0, 10))
    build(pipeline, FAR, span(0, 10, 10), span(1, 0, 7), span(0, 3, 9, JOINED))
    assert missing_intervals(pipeline) == []
    assert completeness(pipeline).complete_until == hour(FAR).to_time


@pytest.mark.parametrize("is_closed", [False, True], ids=["current", "created again since"])
def test_nothing_is_missing_from_before_the_archive_s_beginning_when_an_earlier_hour_was_pinned_without_offsets(
    pipeline: str, is_closed: bool
) -> None:
    build(pipeline, 0, span(0, 0, 0))
    archive(pipeline, 0, span(0, 3, 9), span(1, 2, 4))
    build(pipeline, FAR, span(0, 3, 7), span(1, 2, 4))
    if is_closed:
        with session() as ledger:
            ledger.get_one(Topic, (pipeline, TOPIC)).topic_id = "another"
    assert missing_intervals(pipeline) == []
    assert completeness(pipeline).complete_until == hour(FAR).to_time
    with pytest.raises(TidemarkError, match="does not tile"):
        build(pipeline, 1, span(0, 4, 4), span(1, 2, 2))
    build(pipeline, 1, span(0, 3, 3), span(1, 2, 2))
    assert completeness(pipeline).complete_until == hour(FAR).to_time


def test_offsets_are_missing_from_the_archive_s_beginning_when_an_earlier_hour_was_pinned_without(
    pipeline: str,
) -> None:
    build(pipeline, 0, span(0, 0, 0))
    archive(pipeline, 0, span(0, 3, 9))
    build(pipeline, FAR, span(0, 7, 9))
    assert missing_intervals(pipeline) == [unpinned(4)]
    assert completeness(pipeline).complete_until == hour(0).to_time


def test_earlier_topic_s_beginning_is_not_derived_when_it_was_created_again(pipeline: str) -> None:
    archive(pipeline, 0, span(0, 20, 30))
    build(pipeline, FAR, span(0, 20, 30))
    assert missing_intervals(pipeline) == []
    with session() as ledger:
        ledger.get_one(Topic, (pipeline, TOPIC)).topic_id = "another"
        ledger.get_one(Position, (pipeline, ARCHIVE, TOPIC, 0)).next_offset = 0
    archive(pipeline, 1, span(0, 0, 4, topic_id="another"))
    assert missing_intervals(pipeline) == []


def test_status_and_doctor_show_the_command_when_intervals_are_missing(postgres: Home) -> None:
    name = "isp_hits"
    archive(name, 0, span(0, 0, 12), span(1, 0, 7))
    build(name, 0, span(0, 0, 10))
    build(name, FAR, span(0, 10, 12), span(1, 5, 7))
    summary = summarize_missing(load_pipeline(name))
    assert (summary.count, summary.offsets) == (FAR - 1, 5)
    begin, end = format_time(hour(1).from_time), format_time(hour(1).to_time)
    assert building_commands(load_pipeline(name)) == f"./tidemark interval {name} --from {begin} --to {end}"


def test_command_names_times_that_are_accepted_when_the_schedule_changed(postgres: Home) -> None:
    daily = replace(load_pipeline("gps_positions"), schedule=every("1d"))
    archive(daily.name, 0, span(0, 0, 12))
    # Hour 0 begins at 05:00.
    build(daily.name, 0, span(0, 5, 12))
    begin, end = hour(-5).from_time, hour(0).from_time
    command = f"./tidemark interval {daily.name} --from {format_time(begin)} --to {format_time(end)}"
    assert building_commands(daily) == command
    assert asked_interval(daily, begin, end) == Interval(begin, end)


def begun(attempt: int, ago: timedelta) -> None:
    """Let an attempt have begun so long ago."""
    with session() as ledger:
        ledger.get_one(Attempt, attempt).started_at = datetime.now(UTC) - ago


def die_before_a_job(attempt: int) -> None:
    """Pin, and let the host die, or Ctrl-C come while Spark starts."""
    begun(attempt, timedelta(hours=25))


def die_in_a_job(attempt: int) -> None:
    attempts.resume_attempt(attempt)
    begun(attempt, timedelta(hours=2))


def fail(attempt: int) -> None:
    attempts.note_failure(attempt, 1)


def fail_to_publish(attempt: int) -> None:
    note_build(attempt)
    fail(attempt)


@pytest.mark.parametrize("end", [die_before_a_job, die_in_a_job, fail, fail_to_publish])
def test_interval_is_missing_until_it_is_begun_again_when_its_attempt_came_to_nothing(
    pipeline: str, end: Callable[[int], None]
) -> None:
    registered, attempt = begin_attempt(pipeline, hour(0)), begin_attempt(pipeline, hour(1))
    register(registered, note_build(registered))
    assert missing_intervals(pipeline) == [], "it is under way"
    end(attempt)
    begin_attempt(pipeline, hour(2))
    assert missing_intervals(pipeline) == [MissingIntervals(hour(1).from_time, hour(1).to_time, 200, 1)]
    begin_attempt(pipeline, hour(1))
    assert missing_intervals(pipeline) == []


def test_interval_is_not_missing_when_a_process_works_on_it_or_its_build_was_judged(pipeline: str) -> None:
    working, rejected = begin_attempt(pipeline, hour(0)), begin_attempt(pipeline, hour(1))
    die_in_a_job(working)
    with locks.attempt_under_way(pipeline, hour(0)):
        assert missing_intervals(pipeline) == []
    note_build(rejected)
    builds.reject(attempts.load_attempt(rejected), Validation(False, pipeline))
    fail(rejected)
    assert [each.from_time for each in missing_intervals(pipeline)] == [hour(0).from_time]


def pin_again(pipeline: str) -> None:
    """Give the first hour, which is registered, 20 more offsets in each topic partition."""
    pinned = pins.find_interval(pipeline, hour(0).from_time)
    assert pinned is not None
    longer = [replace(each, until_offset=each.until_offset + 20) for each in pinned.ranges]
    assert pins.replace_ranges(pinned, longer, repinned_by="test") is not None


def unregistered_of(pipeline: str) -> list[str]:
    """What doctor tells of the pipeline's intervals that are built and not registered."""
    return [f"{each.what} — {each.remedy}" for each in unregistered(replace(load_pipeline("isp_hits"), name=pipeline))]


@pytest.mark.parametrize("end", [fail, fail_to_publish])
def test_interval_is_not_missing_and_told_by_doctor_when_it_was_registered_and_pinned_again(
    postgres: Home, end: Callable[[int], None]
) -> None:
    name = f"again_{end.__name__}"
    first = build_and_register(name, hour(0))
    attempts.end_attempt(first, 0, {})
    assert unregistered_of(name) == []
    pin_again(name)
    command = f"./tidemark interval {name} --from 2026-11-20T05:00:00Z --to 2026-11-20T06:00:00Z"
    told = f"{name}: 2026-11-20T05:00:00Z/2026-11-20T06:00:00Z is not registered"
    (never_run,) = unregistered_of(name)
    assert never_run.startswith(f"{told}: pinned again, and not run since")
    assert never_run.endswith(f": {command}")
    attempt = begin_attempt(name, hour(0))
    assert unregistered_of(name) == [], "it is under way"
    end(attempt)
    assert missing_intervals(name) == []
    assert str(completeness(name).waits_for) == "2026-11-20T05:00:00Z to 2026-11-20T06:00:00Z, which is pinned"
    (failed,) = unregistered_of(name)
    assert failed.startswith(f"{told}: exit code 1: ")
    assert failed.endswith(command)


def test_doctor_tells_intervals_whose_build_was_refused_or_has_something_unexplained(postgres: Home) -> None:
    name = "isp_hits_refused"
    registered, rejected, unexplained, in_vain = (begin_attempt(name, hour(n)) for n in range(4))
    register(registered, note_build(registered))
    note_build(rejected)
    builds.reject(attempts.load_attempt(rejected), Validation(False, name))
    attempts.end_attempt(rejected, 2, {})
    note_build(unexplained, unexplained=4)
    attempts.end_attempt(unexplained, 3, {})
    # This one is missing, which is told otherwise.
    fail(in_vain)
    told = unregistered_of(name)
    for each, begin, end, what in zip(told, "76", "87", ["reconciliation left", "validation failed"], strict=True):
        code = 3 if begin == "7" else 2
        times = f"2026-11-20T0{begin}:00:00Z", f"2026-11-20T0{end}:00:00Z"
        assert each.startswith(f"{name}: {'/'.join(times)} is not registered: exit code {code}: {what}")
        assert each.endswith(f": ./tidemark interval {name} --from {times[0]} --to {times[1]}")


@pytest.mark.parametrize("begun_as", ["not yet", "under way", "in vain"])
def test_rest_of_the_earlier_schedule_is_found_until_it_is_begun_when_a_longer_one_has_its_first_run(
    pipeline: str, begun_as: str
) -> None:
    build(pipeline, 0, span(0, 0, 10))
    # Hour 19 ends the day: the first daily run is for the day after it, and pins what lies between.
    rest, day = Interval(hour(1).from_time, hour(19).from_time), Interval(hour(19).from_time, hour(43).from_time)
    for interval, offsets in (day, span(0, 30, 40)), (rest, span(0, 10, 30)):
        between = find_neighbours(pipeline, interval)
        assert write_interval(pipeline, interval, [offsets], {TOPIC: "id"}, pinned_by="test", between=between)
    # Tables of views would have longer names than databases take.
    declared = replace(load_pipeline("isp_hits"), name=pipeline, schedule=every("1d"), views=(), reports=())
    if begun_as != "not yet":
        attempt = begin_attempt(pipeline, rest)
        if begun_as == "in vain":
            fail(attempt)
    assert rest_before(declared, day) == (None if begun_as == "under way" else rest)
    assert rest_before(declared, Interval(day.to_time, day.to_time + timedelta(days=1))) is None
