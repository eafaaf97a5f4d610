"""An interval costs what its neighbours cost, however long the history before it is; on a real broker and ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from sqlalchemy import event

from include import kafka
from include.errors import ArchiveBehind, OffsetsLost
from include.intervals.missing import missing_in_order
from include.intervals.pinning import NEAR, pin_interval
from include.ledger import quarantine
from include.ledger.archive.landing_files import LandingFile
from include.ledger.database import engine
from include.ledger.intervals.missing import MissingIntervals, missing_intervals
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.quarantine import LandedReplay, RecordKey
from include.pipelines.spec import KafkaTopics
from include.streams import generations
from include.times import Interval
from tests.support.topic_log import HOUR, START, Log, by_partition, hour

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("impatient")]

YEARS = -(START - datetime(2015, 3, 1, tzinfo=UTC)) // HOUR
"""The hour, counted from START, in which the history begins."""


@dataclass
class Cost:
    """The requests to Kafka and the writes to the ledger while pinning."""

    searches: int = 0
    written: list[str] = field(default_factory=list)


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch, impatient: None) -> Iterator[Cost]:
    counted, offsets_at = Cost(), kafka.offsets_at

    def search(moment: datetime, *arguments: Any) -> Mapping[Any, int | None]:
        counted.searches += 1
        return offsets_at(moment, *arguments)

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO intervals"):
            counted.written.append(statement)

    monkeypatch.setattr(kafka, "offsets_at", search)
    event.listen(engine(), "before_cursor_execute", note)
    yield counted
    event.remove(engine(), "before_cursor_execute", note)


def pin(log: Log, number: int) -> PinnedInterval:
    return pin_interval(log.pipeline, hour(number), pinned_by="test")


def test_hour_is_pinned_alone_when_the_topic_s_first_records_are_of_2015(log: Log, cost: Cost) -> None:
    log.send(0, *(YEARS + each for each in range(500)), 0.1, 0.5, 1.5)
    log.send(1, YEARS + 0.5, 0.2, 1.1)
    log.archive()
    assert by_partition(pin(log, 0)) == {0: (500, 502), 1: (1, 2)}
    assert len(cost.written) == 1
    assert cost.searches <= 3
    # The next one, and two of the history; those between are left for later.
    assert by_partition(pin(log, 1)) == {0: (502, 503), 1: (2, 3)}
    assert by_partition(pin(log, YEARS + 250)) == {0: (250, 251), 1: (1, 1)}
    assert by_partition(pin(log, YEARS)) == {0: (0, 1), 1: (0, 1)}
    assert len(cost.written) == 4
    assert cost.searches <= 12


def test_hour_is_not_pinned_when_it_has_not_passed_by_the_ledger_s_clock(log: Log) -> None:
    """As asked by a host whose clock is ahead: records of this hour are still to come."""
    now = (datetime.now(UTC) - START) // HOUR
    log.send(0, now - 0.5, now - 0.1)
    log.archive()
    assert by_partition(pin(log, now - 1)) == {0: (0, 2), 1: (0, 0)}
    for number in (now + 1, now + 23):
        with pytest.raises(ArchiveBehind, match="by the ledger's clock it is"):
            pin(log, number)
    assert [each.interval for each in log.pinned()] == [hour(now - 1)]


@pytest.mark.parametrize("first", [1, 1_700_000_000], ids=["1 ms", "seconds for ms"])
def test_record_is_in_the_first_interval_when_the_first_timestamp_is_not_a_time(
    log: Log, cost: Cost, first: int
) -> None:
    for partition in (0, 1):
        log.producer.produce(log.topic, b"x", partition=partition, timestamp=first)
        log.send(partition, 0.1, 0.2, 0.3, 0.4, 1.5)
    log.archive()
    assert by_partition(pin(log, 1)) == {0: (5, 6), 1: (5, 6)}
    assert [by_partition(each)[0] for each in log.pinned()] == [(0, 5), (5, 6)]
    assert len(cost.written) == 2
    assert cost.searches <= 4


def test_next_pinning_goes_on_when_an_earlier_one_was_killed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.send(0, *(each + 0.5 for each in range(-40, 8)))
    log.archive()
    offsets_at, asked = kafka.offsets_at, []

    def search(moment: datetime, *arguments: Any) -> Mapping[Any, int | None]:
        asked.append(moment)
        if len(asked) == 20:
            raise KeyboardInterrupt
        return offsets_at(moment, *arguments)

    monkeypatch.setattr(kafka, "offsets_at", search)
    with pytest.raises(KeyboardInterrupt):
        pin(log, 7)
    written = log.pinned()
    assert len(written) > 10
    asked += [START] * 20
    pin(log, 7)
    assert log.pinned()[: len(written)] == written
    assert len(log.pinned()) == 48


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_every_offset_is_in_one_interval_when_far_intervals_are_pinned_in_any_order(log: Log, seed: int) -> None:
    chosen = random.Random(seed)
    # Days of records, far from each other: each is left for later, or pinned, by itself.
    days = [-4 * (NEAR + 24), -3 * (NEAR + 24), -2 * (NEAR + 24), -(NEAR + 24), 0]
    ends = []
    for partition in (0, 1):
        hours = [day + chosen.uniform(0, 4) for day in days for _ in range(chosen.randrange(1, 60))]
        hours = sorted(hours)
        for _ in range(3):
            hours[chosen.randrange(len(hours))] += chosen.choice((700_000, -400_000, 3))
        log.send(partition, *hours)
        ends.append(len(hours))
    log.archive()
    wanted = [day + number for day in days for number in range(8)]
    chosen.shuffle(wanted)
    for number in wanted:
        pin(log, number)
    for partition, end in enumerate(ends):
        spans = [by_partition(each)[partition] for each in log.pinned()]
        assert spans[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        assert spans[-1][1] == end


def test_intervals_are_missing_when_they_were_never_built(log: Log) -> None:
    log.send(0, *(YEARS + 10 * each for each in range(10)), 0.1, 2.1, 3.1)
    log.archive()
    pin(log, 0)
    pin(log, 3)
    name = log.pipeline.name
    begins, far = hour(0), hour(YEARS + 60)
    unpinned = MissingIntervals(None, begins.from_time, 10, None)
    assert missing_intervals(name) == [unpinned, MissingIntervals(begins.from_time, hour(3).to_time, 3, 4)]
    pin(log, YEARS + 60)
    assert missing_intervals(name)[:3] == [
        MissingIntervals(None, far.from_time, 6, None),
        MissingIntervals(far.from_time, far.to_time, 1, 1),
        MissingIntervals(far.to_time, begins.from_time, 3, None),
    ]


def test_first_records_are_missing_when_a_topic_partition_was_added_before_an_unbuilt_hour(log: Log) -> None:
    begin = -(NEAR + 24)
    log.send(0, begin + 0.1)
    log.archive()
    pin(log, begin)
    log.admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(30)
    # A producer that knew the topic before would refuse the new partition for a while.
    log.producer = kafka.producer()
    log.send(0, 0.1)
    log.send(2, begin + 0.5, begin + 3.5, 0.5)
    log.archive()
    assert by_partition(pin(log, 0))[2] == (2, 3)
    unpinned = MissingIntervals(hour(begin).to_time, hour(0).from_time, 2, None)
    assert [each for each in missing_intervals(log.pipeline.name) if each.pinned is None] == [unpinned]
    # Their first hour is pinned already, so they are in the next one that is built.
    assert hour(begin + 1) in missing_in_order(log.pipeline)
    assert by_partition(pin(log, begin + 1))[2] == (0, 1)
    assert by_partition(pin(log, begin + 3))[2] == (1, 2)
    assert [each for each in missing_intervals(log.pipeline.name) if each.pinned is None] == []


def unpinned(log: Log) -> list[Interval]:
    """The next two intervals that are neither built nor pinned."""
    known = {each.interval for each in log.pinned()}
    return list(islice((each for each in missing_in_order(log.pipeline) if each not in known), 2))


def test_gap_begins_with_its_own_records_when_many_younger_ones_follow(log: Log) -> None:
    far, old = -90 * 24, -80 * 24
    log.send(0, far, old, old + 0.1, old + 1, *(each / 100 for each in range(40)))
    log.archive()
    pin(log, far)
    pin(log, 0)
    assert unpinned(log)[0] == hour(old)
    # Retention removes the gap's first two records: their hour is not known any more.
    next(iter(log.admin.delete_records([TopicPartition(log.topic, 0, 3)]).values())).result(30)
    assert unpinned(log) == [hour(far + 1), hour(old + 2)]
    with pytest.raises(OffsetsLost, match=rf"{log.topic}-0 \[1, 3\) \(2 offsets\)"):
        pin(log, old)
    assert by_partition(pin(log, far + 1))[0] == (1, 3)
    assert by_partition(pin(log, old + 1))[0] == (3, 4)
    assert not any(each.pinned is None for each in missing_intervals(log.pipeline.name))


def test_replayed_rows_go_to_the_asked_interval_when_others_are_pinned_on_the_way(log: Log) -> None:
    log.send(0, 0.5, 1.5, 2.5)
    log.archive()
    name = log.pipeline.name
    landed = LandedReplay(
        {RecordKey(log.topic, "id", 0, 0): "archived"}, {}, [LandingFile("archived", f"landing/{name}/replay-0", 1, 9)]
    )
    quarantine.record_replay(name, 0, landed, by="test", decoder_version="1", seconds=0.5)
    pin(log, 2)
    assert [quarantine.replayed_into(each.id).records for each in log.pinned()] == [0, 0, 1]


def test_rest_of_a_deleted_topic_covers_the_gaps_when_intervals_left_some(log: Log) -> None:
    log.send(0, *(YEARS + 10 * each for each in range(10)), 0.1, 0.2, 1.1)
    log.archive()
    pin(log, 0)
    pin(log, YEARS + 60)
    log.delete()
    log.producer = kafka.producer()
    log.create(2)
    adopted = generations.adopt(log.pipeline, log.topic, reason="moved", adopted_by="test@host")
    every = timedelta(hours=1)
    assert adopted["gaps"] == [str(log.pinned()[0].interval), str(log.pinned()[2].interval)]
    far = hour(YEARS + 60)
    assert [(each.interval, by_partition(each)[0]) for each in log.pinned()] == [
        (Interval(far.from_time - every, far.from_time), (0, 6)),
        (far, (6, 7)),
        (Interval(START - every, START), (7, 10)),
        (hour(0), (10, 12)),
        (hour(1), (12, 13)),
    ]


def test_gap_is_left_for_later_when_the_deleted_topic_has_nothing_in_it(log: Log) -> None:
    other = replace(log.pipeline, source=KafkaTopics(subscribe=(f"{log.topic}-other",)))
    kept = Log(other, batches=1)
    kept.create(1)
    kept.send(0, *(YEARS + 10 * each for each in range(10)), 0.3)
    log.send(0, YEARS + 60.5, 0.1, 1.1)
    log.archive()
    kept.archive()
    both = replace(log.pipeline, source=KafkaTopics(subscribe=(log.topic, kept.topic)))
    for number in (0, YEARS + 60):
        pin_interval(both, hour(number), pinned_by="test")
    log.delete()
    log.producer = kafka.producer()
    log.create(2)
    adopted = generations.adopt(both, log.topic, reason="moved", adopted_by="test@host")
    assert (adopted["gaps"], adopted["pinned"]) == ([], str(hour(1)))
    assert [each.interval for each in log.pinned()] == [hour(YEARS + 60), hour(0), hour(1)]
    pinned = pin_interval(both, hour(YEARS + 80), pinned_by="test")
    assert [(r.topic_partition.topic, r.from_offset, r.until_offset) for r in pinned.ranges] == [
        (log.topic, 1, 1),
        (log.topic, 0, 0),
        (kept.topic, 8, 9),
    ]
