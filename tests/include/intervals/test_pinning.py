"""Times to offset ranges, on a real broker and ledger; micro-batches are committed as a stream would."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from sqlalchemy import select

from include import kafka, lake
from include.approvals.of_streams import known_topic
from include.approvals.request import Choice, Request
from include.errors import (
    AnotherWriter,
    ArchiveBehind,
    MetadataGone,
    OffsetsLost,
    TidemarkError,
    TopicRecreated,
    UsageError,
)
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.intervals.boundaries import asked_interval
from include.intervals.missing import missing_in_order
from include.intervals.pinning import pin_interval
from include.intervals.reporting.plan import plan_interval
from include.ledger.archive import landing_files, micro_batches
from include.ledger.archive.committed import committed_offsets
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, RecordCounts, Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import registered_of_interval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.ledger.models import IntervalRow, MicroBatch, Repin, Revision
from include.ledger.streams import generations as ledger_generations
from include.ledger.streams import losses, writers
from include.monitor.lag import lag_of, log_error
from include.monitor.missing import building_commands
from include.monitor.streams import broker
from include.offsets import OffsetRange
from include.offsets import TopicPartition as Tp
from include.pipelines.spec import KafkaTopics
from include.reconciliation import ReconciliationCounts
from include.settings import settings
from include.streams import generations
from include.streams.start import check_retention, lost_offsets
from include.times import Interval, every
from tests.conftest import iso
from tests.support.attempts import build_and_register
from tests.support.leases import held_lease
from tests.support.topic_log import HOUR, START, Log, by_partition, hour

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("impatient")]


def assert_tiling(pinned: list[PinnedInterval]) -> None:
    at: dict[tuple[str, int], int] = {}
    times = [each.interval for each in pinned]
    assert all(before.to_time == after.from_time for before, after in pairwise(times))
    for each in pinned:
        for r in each.ranges:
            key = (r.topic_id, r.topic_partition.partition)
            assert at.get(key, r.from_offset) == r.from_offset
            at[key] = r.until_offset


def test_intervals_tile_and_take_each_record_once_when_timestamps_run_backwards(log: Log) -> None:
    log.send(0, 0.1, 1.5, 0.2, 2.1, 0.9, 1.9, 2.5)
    log.send(1, 0.5)
    log.archive()
    # The first record of hour 1 ends hour 0; what follows with an earlier timestamp belongs to a later interval.
    assert [log.pin(number)[0] for number in range(3)] == [(0, 1), (1, 3), (3, 7)]
    assert_tiling(log.pinned())


def test_interval_is_complete_up_to_the_end_and_the_next_goes_on_there_when_a_topic_partition_is_quiet(
    log: Log,
) -> None:
    log.send(0, 0.1, 0.2)
    log.send(1, 0.3, 1.2, 2.2)
    log.archive()
    assert log.pin(0) == {0: (0, 2), 1: (0, 1)}
    assert log.pin(1) == {0: (2, 2), 1: (1, 2)}
    # It gets records again, of an hour that is already pinned.
    log.send(0, 1.4, 2.4)
    log.archive()
    assert log.pin(1) == {0: (2, 2), 1: (1, 2)}
    assert log.pin(2) == {0: (2, 4), 1: (2, 3)}
    assert_tiling(log.pinned())


def test_interval_stays_pinned_and_the_next_run_goes_on_when_its_iceberg_table_has_no_metadata(log: Log) -> None:
    log.pipeline = replace(log.pipeline, archive=replace(log.pipeline.archive, iceberg=True))
    tables.prepare(log.pipeline)
    log.send(0, 0.5, 1.5)
    log.archive()
    assert log.pin(0)[0] == (0, 1)
    build_and_register(log.pipeline.name, hour(0))
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", log.pipeline.table))
    metadata = Path(lake.filesystem(table.metadata_location)[1])
    aside = metadata.rename(f"{metadata}.aside")
    log.send(0, 0.7)
    log.archive()
    for repin in (True, False):
        with pytest.raises(MetadataGone, match=rf"lake\.{log.pipeline.table}: .* — put it back, or .*doctor --repair"):
            log.pin(0, repin=repin)
        assert [by_partition(each)[0] for each in log.pinned()] == [(0, 1)]
    aside.rename(metadata)
    assert log.pin(0)[0] == (0, 1)
    assert log.pin(1)[0] == (1, 3)


@pytest.mark.parametrize("repin", [False, True])
def test_interval_begins_where_the_archive_does_when_one_was_pinned_before_the_first_commit(
    log: Log, repin: bool
) -> None:
    assert log.pin(0) == {0: (0, 0), 1: (0, 0)}
    log.admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(30)
    log.producer = kafka.producer()
    log.send(0, 1.2, 1.4)
    log.send(2, 1.2)
    log.archive(from_latest=True)
    log.send(0, 1.6, 2.5)
    log.archive()
    if repin:
        assert log.pin(0, repin=True) == {0: (2, 2), 1: (0, 0), 2: (1, 1)}
    assert log.pin(1) == {0: (2, 3), 1: (0, 0), 2: (1, 1)}
    assert log.pin(2)[0] == (3, 4)


def pin_before_the_archive(log: Log) -> None:
    """Hours 1 and 2 as they were once pinned: from an offset that the archive, which begins at 3, passed over."""
    log.pin(0)
    log.send(0, 1.2, 2.1, 2.2)
    log.archive(from_latest=True)
    log.send(0, 2.6, 3.5)
    log.archive()
    for number, (begin, until) in {1: (0, 1), 2: (1, 4)}.items():
        ranges = [OffsetRange(Tp(log.topic, 0), begin, until), OffsetRange(Tp(log.topic, 1), 0, 0)]
        between = pins.find_neighbours(log.pipeline.name, hour(number))
        topic_ids = log.pinned()[0].topic_ids
        pins.write_interval(log.pipeline.name, hour(number), ranges, topic_ids, pinned_by="test", between=between)


def test_interval_is_run_without_what_the_archive_passed_over_when_it_was_pinned_before(log: Log) -> None:
    pin_before_the_archive(log)
    assert log.pin(3)[0] == (4, 5)
    for number, ranges, read in ((1, (0, 1), (1, 1)), (2, (1, 4), (3, 4))):
        assert log.pin(number)[0] == ranges
        pinned = log.pinned()[number]
        to_be_read = losses.to_be_read(log.pipeline.name, pinned.ranges)
        assert by_partition(replace(pinned, ranges=tuple(to_be_read)))[0] == read
        plan = plan_interval(log.pipeline, hour(number), source=Source.KAFKA, repin=False)
        assert not any("refused" in line for line in plan)
        with pytest.raises(UsageError, match="is pinned after it and would no longer tile"):
            log.pin(number, repin=True)


def test_last_interval_is_pinned_again_from_the_archive_s_beginning_when_it_began_before(log: Log) -> None:
    pin_before_the_archive(log)
    log.send(0, 2.7)
    log.archive()
    assert log.pin(2, repin=True)[0] == (3, 4)
    assert log.pin(3)[0] == (4, 6)


def test_new_topic_partition_starts_at_0_in_the_interval_where_it_appears_when_partitions_are_added(log: Log) -> None:
    log.send(0, 0.1, 1.1)
    log.archive()
    assert log.pin(0) == {0: (0, 1), 1: (0, 0)}
    log.admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(30)
    # A producer that knew the topic before would refuse the new partition for a while.
    log.producer = kafka.producer()
    log.send(2, 0.5, 1.5, 2.5)
    log.send(0, 2.1)
    log.archive()
    assert log.pin(1) == {0: (1, 2), 1: (0, 0), 2: (0, 2)}
    assert log.pin(2)[2] == (2, 3)
    assert_tiling(log.pinned())


def test_earlier_intervals_are_pinned_on_the_way_and_reused_when_they_run_out_of_order(log: Log) -> None:
    log.send(0, 0.5, 1.5, 2.5, 3.5)
    log.archive()
    assert log.pin(2)[0] == (2, 3)
    assert [by_partition(each)[0] for each in log.pinned()] == [(0, 1), (1, 2), (2, 3)]
    assert log.pin(0)[0] == (0, 1)
    assert log.pin(3)[0] == (3, 4)
    # Before the first there is nothing.
    assert log.pin(-2) == {0: (0, 0), 1: (0, 0)}
    assert len(log.pinned()) == 6
    assert_tiling(log.pinned())


def test_intervals_of_another_schedule_are_run_as_they_are_and_none_overlaps_them_when_the_schedule_changes(
    log: Log,
) -> None:
    # Hours 1 and 2 of a schedule whose boundaries are, from now on, every two hours.
    begin = START + (START.hour % 2) * HOUR
    hours = [Interval(begin + n * HOUR, begin + (n + 1) * HOUR) for n in range(6)]
    offset = (begin - START) / HOUR
    log.send(0, *(offset + n + 0.5 for n in range(6)))
    log.archive()
    pin = partial(pin_interval, pinned_by="test")
    assert by_partition(pin(log.pipeline, hours[0]))[0] == (0, 1)
    log.pipeline = replace(log.pipeline, schedule=every("2h"))

    asked = Interval(hours[0].from_time, hours[1].to_time)
    for refused in (partial(pin, log.pipeline), partial(plan_interval, log.pipeline, source=Source.KAFKA, repin=False)):
        with pytest.raises(UsageError, match=f"overlaps {hours[0]}") as error:
            refused(asked)
        # What is left of it, which can be run; the pinned one may be registered long since.
        assert f"--from {iso(hours[1].from_time)} --to {iso(hours[1].to_time)}" in error.value.remedy
        assert asked_interval(log.pipeline, hours[1].from_time, hours[1].to_time) == hours[1]
    assert len(log.pinned()) == 1

    # The time between the last one and the next boundary is an interval of its own, and no offset is left out.
    assert by_partition(pin(log.pipeline, Interval(hours[2].from_time, hours[3].to_time)))[0] == (2, 4)
    assert [each.interval for each in log.pinned()][:2] == hours[:2]
    assert_tiling(log.pinned())
    for each in (hours[0], hours[1]):
        assert asked_interval(log.pipeline, each.from_time, each.to_time) == each
    with pytest.raises(UsageError, match="is not a boundary"):
        asked_interval(log.pipeline, hours[3].from_time, hours[3].to_time)
    assert list(missing_in_order(log.pipeline)) == [*hours[:2], Interval(hours[2].from_time, hours[3].to_time)]
    assert f"--from {iso(hours[0].from_time)} --to {iso(hours[0].to_time)}" in building_commands(log.pipeline)

    # And back again, to a schedule whose intervals lie inside of a pinned one.
    log.pipeline = replace(log.pipeline, schedule=every("1h"))
    for inside in hours[2:4]:
        with pytest.raises(UsageError, match="overlaps") as error:
            pin(log.pipeline, inside)
        assert f"--from {iso(hours[2].from_time)} --to {iso(hours[3].to_time)}" in error.value.remedy
    assert by_partition(pin(log.pipeline, hours[4]))[0] == (4, 5)
    assert_tiling(log.pinned())


def test_missing_intervals_are_those_that_can_be_run_when_a_gap_ends_at_no_boundary_of_the_schedule(log: Log) -> None:
    # Further apart than one pinning fills, and the second one begins at an odd hour.
    begin = START + (START.hour % 2) * HOUR - 72 * HOUR
    hours = [Interval(begin + n * HOUR, begin + (n + 1) * HOUR) for n in (0, 60, 61)]
    log.send(0, *((each.from_time - START) / HOUR + 0.5 for each in hours))
    log.archive()
    for each in (hours[0], hours[2]):
        pin_interval(log.pipeline, each, pinned_by="test")
    log.pipeline = replace(log.pipeline, schedule=every("2h"))
    missing = list(missing_in_order(log.pipeline))
    assert missing == [hours[0], hours[2], hours[1]]
    assert [asked_interval(log.pipeline, each.from_time, each.to_time) for each in missing] == missing


def test_gap_is_not_missing_when_its_only_offsets_are_from_before_the_archive_s_beginning(log: Log) -> None:
    log.pin(-60)
    log.send(0, -1)
    log.archive(from_latest=True)
    log.send(0, 0.5)
    log.archive()
    assert log.pin(0)[0] == (1, 2)
    assert list(missing_in_order(log.pipeline)) == [hour(-60), hour(0)]
    log.pin(-30)
    assert list(missing_in_order(log.pipeline)) == [hour(number) for number in range(-60, 1)]
    assert_tiling(log.pinned()[1:])


def test_nothing_is_pinned_when_the_archive_does_not_reach_the_interval_s_end(log: Log) -> None:
    log.send(0, 0.5)
    log.archive()
    log.send(0, 0.6)
    with pytest.raises(ArchiveBehind) as behind:
        log.pin(0)
    assert f"{log.topic}-0 is at 1 of 2" in str(behind.value)
    assert log.pinned() == []


def test_pinning_waits_for_the_archive_when_it_catches_up_in_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.send(0, 0.5, 0.6)
    asked = threading.Event()
    positions = micro_batches.positions

    def observed(pipeline: str) -> dict[Tp, int]:
        asked.set()
        return positions(pipeline)

    monkeypatch.setattr("include.intervals.archive_wait.positions", observed)
    patient = replace(settings(), archive_wait="60s")
    monkeypatch.setattr("include.intervals.pinning.settings", lambda: patient)
    with ThreadPoolExecutor(1) as pool:
        pinning = pool.submit(log.pin, 0)
        assert asked.wait(30)
        assert log.pinned() == []
        log.archive()
        assert pinning.result(60)[0] == (0, 2)


def test_all_see_the_same_ranges_and_they_tile_when_many_pin_at_once(log: Log) -> None:
    for partition in (0, 1):
        log.send(partition, *(n / 10 + random.Random(partition).random() / 2 for n in range(60)))
    log.archive()
    numbers = [random.Random(7).randrange(6) for _ in range(24)]
    start = threading.Barrier(8)

    def pin_some(share: list[int]) -> list[tuple[int, dict[int, tuple[int, int]]]]:
        start.wait(30)
        return [(number, log.pin(number)) for number in share]

    with ThreadPoolExecutor(8) as pool:
        found = [each for share in pool.map(pin_some, [numbers[i::8] for i in range(8)]) for each in share]
    assert_tiling(log.pinned())
    known = {each.interval.from_time: by_partition(each) for each in log.pinned()}
    assert len(found) == 24
    assert all(known[hour(number).from_time] == ranges for number, ranges in found)


def register_something(pinned: PinnedInterval) -> BuiltRevision:
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")
    label = f"date=2026-01-01/interval={pinned.interval.label}"
    built = BuiltRevision(pinned.pipeline, label, f"r-{attempt}", "file:///nowhere", 1, "hash", {})
    findings = BuildFindings(pinned.ranges, {}, RecordCounts(), ReconciliationCounts())
    builds.note_build(attempts.load_attempt(attempt), [built], findings)
    passed, changes = Validation(True, pinned.pipeline), Changes(points=(built,))
    builds.finish_registration(builds.begin_registration(attempts.load_attempt(attempt), passed, changes))
    return built


def test_repin_takes_what_came_late_and_keeps_what_is_registered_when_it_is_the_last_interval(log: Log) -> None:
    log.send(0, 0.5, 0.6)
    log.archive()
    first = log.pin(0)
    built = register_something(log.pinned()[0])
    before = log.pinned()[0]
    log.send(0, 0.7, 1.1)
    log.archive()
    assert log.pin(0) == first, "pinned once, without --repin"
    assert log.pin(0, repin=True) == {0: (0, 3), 1: (0, 0)}
    after = log.pinned()[0]
    assert after.id == before.id
    # The catalog still points at the revision, so the ledger still knows it; but its interval is to be run.
    assert registered_of_interval(after.id) == [built]
    with session() as ledger:
        assert ledger.scalars(select(Revision.state).where(Revision.interval_id == after.id)).all() == ["registered"]
        assert ledger.get_one(IntervalRow, after.id).state == "pinned"
        (repin,) = ledger.scalars(select(Repin).where(Repin.interval_id == after.id)).all()
    assert repin.repinned_by == "test"
    assert [r["until_offset"] for r in repin.old_ranges] == [2, 0]
    assert [r["until_offset"] for r in repin.new_ranges] == [3, 0]
    assert log.pin(1)[0] == (3, 4)
    assert_tiling(log.pinned())


def test_repin_is_refused_when_a_later_interval_is_pinned(log: Log) -> None:
    log.send(0, 0.5, 1.5)
    log.archive()
    log.pin(1)
    log.send(0, 0.7)
    log.archive()
    with pytest.raises(UsageError, match="is pinned after it and would no longer tile"):
        log.pin(0, repin=True)
    assert [by_partition(each)[0] for each in log.pinned()] == [(0, 1), (1, 2)]
    with session() as ledger:
        wanted = select(Repin).join(IntervalRow, IntervalRow.id == Repin.interval_id)
        assert ledger.scalars(wanted.where(IntervalRow.pipeline == log.pipeline.name)).all() == []


def test_interval_is_not_written_when_it_does_not_tile(log: Log) -> None:
    log.send(0, 0.5, 0.6, 1.5)
    log.archive()
    log.pin(0)
    (pinned,) = log.pinned()
    shifted = [OffsetRange(Tp(log.topic, 0), 1, 3), OffsetRange(Tp(log.topic, 1), 0, 0)]
    between = pins.find_neighbours(log.pipeline.name, hour(1))
    with pytest.raises(TidemarkError, match="does not tile"):
        pins.write_interval(log.pipeline.name, hour(1), shifted, pinned.topic_ids, pinned_by="test", between=between)
    assert len(log.pinned()) == 1


def landed(log: Log, name: str, *hours: float) -> LandingFile:
    """A landing file of which only the timestamps matter here."""
    path = f"landing/{log.pipeline.name}/{name}/fate=archived/part.parquet"
    system, at = lake.filesystem(lake.uri(path))
    system.create_dir(at.rsplit("/", 1)[0], recursive=True)
    times = pa.array([START + each * HOUR for each in hours], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"kafka_timestamp": times}), at)
    return LandingFile("archived", path, len(hours), 1)


def adopt(log: Log) -> dict[str, object]:
    return generations.adopt(log.pipeline, log.topic, reason="moved", adopted_by="test@host")


def recreate(log: Log) -> None:
    log.delete()
    log.producer = kafka.producer()
    log.create(2)


@pytest.mark.parametrize("records", [1, 9], ids=["shorter", "longer"])
def test_rest_of_the_old_topic_is_an_interval_and_the_new_one_begins_at_its_beginning_when_adopted(
    log: Log, records: int
) -> None:
    log.send(0, 0.5, 1.5, 2.5, 2.6)
    log.send(1, 1.7)
    log.archive()
    log.pin(0)
    old = kafka.describe_topics([log.topic])[log.topic].topic_id
    recreate(log)
    log.send(0, *[2.7] * records)
    with pytest.raises(TopicRecreated, match=f"./tidemark adopt {log.pipeline.name} {log.topic}"):
        log.pin(1)
    assert adopt(log)["pinned"] == str(hour(1))
    new = kafka.describe_topics([log.topic])[log.topic].topic_id
    rest = log.pinned()[-1]
    assert by_partition(rest) == {0: (1, 4), 1: (0, 1)}
    assert rest.topic_ids == {log.topic: old}
    assert attempts.readable_source(rest, "kafka") == "archive"
    with pytest.raises(UsageError, match="was deleted since"):
        log.pin(1, repin=True)

    log.archive()
    assert log.pin(2) == {0: (0, records), 1: (0, 0)}
    assert log.pinned()[-1].topic_ids == {log.topic: new}
    assert attempts.readable_source(log.pinned()[-1], "kafka") == "kafka"
    log.send(0, 3.5)
    log.archive()
    assert log.pin(3)[0] == (records, records + 1)
    assert_tiling(log.pinned())
    generation = ledger_generations.current(log.pipeline.name)
    assert generation is not None
    assert generation.number == 1


def test_files_are_those_of_the_range_s_own_incarnation_when_offsets_are_the_same(log: Log) -> None:
    log.send(0, 0.5, 0.6)
    log.archive((landed(log, "old", 0.5, 0.6),))
    recreate(log)
    log.send(0, 1.5, 1.6)
    # Nothing was pinned: the rest is the hour of the first record that is archived.
    assert adopt(log)["pinned"] == str(hour(0))
    log.archive((landed(log, "new", 1.5, 1.6),))
    log.pin(1)
    old, new = log.pinned()
    assert by_partition(old) == by_partition(new) == {0: (0, 2), 1: (0, 0)}
    files = [landing_files.files_covering(log.pipeline.name, each.ranges, "archived") for each in (old, new)]
    assert [len(each) for each in files] == [1, 1]
    assert "/old/" in files[0][0]
    assert "/new/" in files[1][0]


def test_shorter_new_topic_is_no_truncated_log_when_views_and_outputs_had_read_the_old_one(log: Log) -> None:
    log.send(0, 0.5, 0.6, 0.7)
    for query in ("archive", "hourly_counts", "a view that was removed"):
        log.archive(query=query)
    recreate(log)
    log.send(0, 1.5)
    adopt(log)
    check_retention(log.pipeline, ledger_generations.current(log.pipeline.name))
    lags = lag_of(log.pipeline)
    assert [(each.partition, each.lag) for each in lags] == [(0, 1), (1, 0)]
    assert log_error(log.pipeline, lags) is None
    assert committed_offsets(log.pipeline.name).keys() == {"archive"}


def test_adopt_is_refused_when_the_topic_is_the_same_unknown_or_missing(log: Log) -> None:
    log.send(0, 0.5)
    log.archive()
    with pytest.raises(UsageError, match="nothing to adopt"):
        adopt(log)
    with pytest.raises(UsageError, match="not a topic that was read before"):
        generations.adopt(log.pipeline, "another", reason="moved", adopted_by="test@host")
    log.delete()
    with pytest.raises(TopicRecreated, match="no longer exists") as gone:
        adopt(log)
    assert gone.value.exit_code == 4


def test_topic_that_was_mirrored_is_adopted_only_behind_the_archive_or_on_request(log: Log) -> None:
    log.send(0, 0.5, 0.6, 1.5)
    log.archive()
    log.pin(0)
    recreate(log)
    # Another cluster's copy, at the same offsets, with one more record.
    log.send(0, 0.5, 0.6, 1.5, 1.7)
    by_form = Request(Choice.ADOPT, log.pipeline, log.topic)
    for refused in (lambda: adopt(log), lambda: list(known_topic(by_form))):
        with pytest.raises(
            UsageError, match=f"{log.topic}-0 offset 1 holds one of {iso(START + 0.6 * HOUR)}"
        ) as raised:
            refused()
        assert f"{log.topic}-0 up to 3" in raised.value.remedy
    before = log.pinned()
    assert [by_partition(each)[0] for each in before] == [(0, 2)]

    cut(log, 0, 3)
    assert "begins: " + f"{log.topic}-0 at offset 3, 1 records wait" in list(known_topic(by_form))
    assert adopt(log)["begins"] == {f"{log.topic}-0": 3, f"{log.topic}-1": 0}
    log.archive()
    log.pin(2)
    assert [by_partition(each)[0] for each in log.pinned()] == [(0, 2), (2, 3), (3, 4)]
    assert_tiling(log.pinned())

    recreate(log)
    log.send(0, 0.5, 0.6, 1.5, 1.7)
    with pytest.raises(UsageError, match="records that were archived of the former one"):
        adopt(log)
    again = {"reason": "all of it again", "adopted_by": "test@host", "read_again": True}
    assert generations.adopt(log.pipeline, log.topic, **again)["begins"] == {f"{log.topic}-0": 0, f"{log.topic}-1": 0}


def cut(log: Log, partition: int, before: int) -> None:
    futures = log.admin.delete_records([TopicPartition(log.topic, partition, before)])
    next(iter(futures.values())).result(30)


def test_stream_and_interval_are_refused_while_a_topic_that_was_read_is_not_declared(log: Log) -> None:
    former = f"{log.topic}-former"
    other = Log(replace(log.pipeline, source=KafkaTopics(subscribe=(former,))))
    other.create(1)
    other.send(0, 0.5)
    other.archive()
    for check in (lambda: check_retention(log.pipeline, None), lambda: log.pin(0)):
        with pytest.raises(UsageError, match=f"{former} was read before, and the source does not name it") as raised:
            check()
        assert "declare it again" in raised.value.remedy
    both = Log(replace(log.pipeline, source=KafkaTopics(subscribe=(log.topic, former))), log.batches)
    check_retention(both.pipeline, None)


def test_loss_is_exact_per_topic_partition_and_on_record_when_it_is_found_grows_and_is_accepted(log: Log) -> None:
    log.send(0, 0.5, 0.6)
    log.send(1, 0.5)
    log.archive()
    log.pin(0)
    log.send(0, *[1.5] * 10)
    log.send(1, 1.5)
    cut(log, 0, 5)
    with pytest.raises(OffsetsLost, match=rf"{log.topic}-0 \[2, 5\) \(3 offsets\)") as raised:
        check_retention(log.pipeline, None)
    # Whoever looks at the lag before the next start learns that not all of it waits.
    told = log_error(log.pipeline, lag_of(log.pipeline))
    seen = broker._seen_now(broker._Pipeline(log.pipeline, 0.0, 0.0))
    assert str(told) == str(raised.value)
    assert (seen.log_error, seen.log_remedy) == (raised.value.message, raised.value.remedy)
    # Where a start of the stream accepts it, nobody has to do anything.
    accepts = replace(log.pipeline, source=replace(log.pipeline.source, fail_on_data_loss=False))
    assert log_error(accepts, lag_of(accepts)) is None
    assert broker._seen_now(broker._Pipeline(accepts, 0.0, 0.0)).log_error == ""
    cut(log, 0, 7)
    with pytest.raises(OffsetsLost, match=rf"\[2, 7\) \(5 offsets\).*accept-loss {log.pipeline.name}"):
        check_retention(log.pipeline, None)
    (lost,) = generations.accept_loss(log.pipeline, reason="a  test", accepted_by="me@here")
    assert (lost.from_offset, lost.until_offset) == (2, 7)
    assert lost_offsets(log.pipeline) == []
    assert log_error(log.pipeline, lag_of(log.pipeline)) is None
    check_retention(log.pipeline, None)
    with pytest.raises(UsageError, match="nothing is lost"):
        generations.accept_loss(log.pipeline, reason="again", accepted_by="me@here")

    log.archive()
    log.pin(1)
    pinned = log.pinned()[-1]
    assert by_partition(pinned) == {0: (2, 12), 1: (1, 2)}
    (accepted,) = losses.accepted_in(log.pipeline.name, pinned.ranges)
    assert (accepted.accepted_by, accepted.reason) == ("me@here", "a test")
    assert [r.from_offset for r in losses.without(pinned.ranges, [accepted])] == [7, 1]
    assert losses.accepted_in(log.pipeline.name, log.pinned()[0].ranges) == []
    with session() as ledger:
        rows = ledger.scalars(
            select(MicroBatch.query_id).where(MicroBatch.pipeline == log.pipeline.name).order_by(MicroBatch.id)
        ).all()
    assert rows[1] == f"loss-{accepted.id}-{log.pipeline.name}"


def test_loss_can_be_accepted_when_a_topic_joins_a_pattern_without_its_beginning(log: Log) -> None:
    second = f"{log.topic}2"
    pipeline = replace(log.pipeline, source=KafkaTopics(pattern=f"{log.topic}2?"))
    log.send(0, 0.5)
    # At a first start a topic's beginning may be cut: it was never to be read.
    generation = ledger_generations.current_or_first(pipeline.name, "test@host")
    assert lost_offsets(pipeline) == []
    began = dict.fromkeys(kafka.topic_partitions_of(kafka.describe_topics([log.topic]).values()), 0)
    ledger_generations.note_start(generation, ARCHIVE, {}, began)
    log.archive()
    kafka.create_topic(second, 1)
    for _ in range(5):
        log.producer.produce(second, b"x", partition=0, timestamp=int((START + 0.7 * HOUR).timestamp() * 1000))
    assert log.producer.flush(30) == 0
    assert lost_offsets(pipeline) == []
    next(iter(log.admin.delete_records([TopicPartition(second, 0, 3)]).values())).result(30)

    with pytest.raises(OffsetsLost, match=rf"{second}-0 \[0, 3\) \(3 offsets\).*accept-loss {pipeline.name}"):
        check_retention(pipeline, generation)
    (lost,) = generations.accept_loss(pipeline, reason="it was old", accepted_by="me@here")
    assert (str(lost.topic_partition), lost.from_offset, lost.until_offset) == (f"{second}-0", 0, 3)
    assert lost_offsets(pipeline) == []
    assert micro_batches.stored_topics(pipeline.name).keys() == {log.topic, second}
    at = micro_batches.positions(pipeline.name)
    assert {str(tp): offset for tp, offset in at.items()} == {
        f"{log.topic}-0": 1, f"{log.topic}-1": 0, f"{second}-0": 3,
    }  # fmt: skip
    (accepted,) = losses.accepted_in(pipeline.name, [OffsetRange(lost.topic_partition, 0, 5)])
    assert "it was old" in accepted.evidence


def test_ways_on_are_refused_with_exit_code_5_when_a_driver_holds_the_pipeline(log: Log) -> None:
    log.send(0, *[0.5] * 5)
    log.archive()
    log.send(0, *[0.6] * 5)
    cut(log, 0, 8)
    with held_lease(log.pipeline.name):
        ways: list[Callable[[], object]] = [
            lambda: generations.new_generation(log.pipeline, reason="a test", started_by="me@here"),
            lambda: generations.accept_loss(log.pipeline, reason="a test", accepted_by="me@here"),
        ]
        for way in ways:
            with pytest.raises(AnotherWriter) as refused:
                way()
            assert refused.value.exit_code == 5
    assert ledger_generations.current(log.pipeline.name) is None
    with pytest.raises(UsageError, match="a reason is needed"):
        generations.new_generation(log.pipeline, reason="  ", started_by="me@here")
    assert generations.new_generation(log.pipeline, reason="a test", started_by="me@here") == 1


def test_one_driver_gets_the_lease_when_many_come_at_once(log: Log) -> None:
    start = threading.Barrier(6)

    def come(_: int) -> writers.Lease | None:
        start.wait(30)
        return writers._try_acquire(log.pipeline.name)

    with ThreadPoolExecutor(6) as pool:
        leases = [lease for lease in pool.map(come, range(6)) if lease is not None]
    assert [lease.token for lease in leases] == [1]


def test_commit_is_refused_with_the_way_on_when_checkpoint_and_ledger_disagree(log: Log) -> None:
    log.send(0, 0.5, 0.6, 0.7)
    log.archive()
    with held_lease(log.pipeline.name) as lease:
        again = [OffsetRange(Tp(log.topic, 0), 1, 3)]
        identities = kafka.describe_topics([log.topic])
        with pytest.raises(TidemarkError, match=r"do not belong together.*new-generation"):
            micro_batches.commit(lease, BatchCommit(log.pipeline.name, ARCHIVE, "another", 0, again, identities))
    assert micro_batches.positions(log.pipeline.name)[Tp(log.topic, 0)] == 3
