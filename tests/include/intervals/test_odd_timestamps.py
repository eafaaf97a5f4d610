"""Record timestamps that are wrong end no interval, on a real broker and ledger."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from confluent_kafka.admin import NewTopic
from sqlalchemy import update

from include import kafka
from include.intervals import pinning
from include.intervals.verdict import assemble_verdict
from include.kafka import offset_search
from include.ledger.database import session
from include.ledger.intervals import attempts
from include.ledger.intervals.odd_timestamps import as_json
from include.ledger.models import MicroBatch
from include.monitor.report import render_report
from include.offsets import TopicPartition
from tests.conftest import Home
from tests.support import audit
from tests.support.topic_log import HOUR, START, Log, hour
from tests.support.transactions import transactional_producer

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("impatient")]

FAR = 640_000.0
"""Hours: 73 years ahead."""


def odd(log: Log) -> list[tuple[int, int | None]]:
    """By interval: how many timestamps are odd, and the first one's offset."""
    found = [as_json(each.odd_timestamps) for each in log.pinned()]
    return [(each["count"], each["first"] and each["first"]["offset"]) for each in found]


def assert_each_offset_is_in_one_interval(log: Log, partition: int, until: int) -> None:
    spans = [
        (r.from_offset, r.until_offset)
        for each in log.pinned()
        for r in each.ranges
        if r.topic_partition.partition == partition
    ]
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert spans[-1][1] == until


def assert_tiles(log: Log) -> None:
    for before, after in pairwise(log.pinned()):
        assert before.interval.to_time == after.interval.from_time
        ends = {r.topic_partition: r.until_offset for r in before.ranges}
        assert {r.topic_partition: r.from_offset for r in after.ranges} == ends


def spread(number: int, records: int) -> list[float]:
    return [number + (each + 0.5) / records for each in range(records)]


def test_next_hour_keeps_its_records_when_one_timestamp_lies_in_2099(log: Log) -> None:
    log.send(0, *spread(0, 100), FAR, *spread(1, 900), *spread(2, 50))
    log.archive()
    assert [log.pin(number)[0] for number in range(3)] == [(0, 101), (101, 1001), (1001, 1051)]
    assert odd(log) == [(1, 100), (0, None), (0, None)]
    first, second, _ = log.pinned()
    attempt = attempts.begin_attempt(first, run_by="test", code_version="1", source="kafka")
    verdict = assemble_verdict(attempts.load_attempt(attempt), []).as_json()
    far = (START + timedelta(hours=FAR)).isoformat().replace("+00:00", "Z")
    named = {"topic": log.topic, "partition": 0, "offset": 100, "timestamp": far}
    assert verdict["odd_timestamps"] == {"count": 1, "first": named}
    page = render_report(verdict, {})
    assert (
        f"1 record has a timestamp too far ahead to end the interval; the first is <code>{log.topic}-0 offset 100"
        in page
    )
    assert far in page
    assert as_json(second.odd_timestamps) == {"count": 0, "first": None}


@pytest.mark.parametrize("ahead", [FAR, 3.0], ids=["2099", "3 hours"])
def test_no_interval_ends_when_odd_timestamps_come_first_between_or_last(log: Log, ahead: float) -> None:
    for partition in (0, 1):
        log.send(partition, *[ahead] * 5, *spread(0, 60), *[ahead] * 3, *spread(1, 60), ahead + 1, *spread(2, 60))
    log.archive()
    assert [log.pin(number) for number in range(3)] == [{0: span, 1: span} for span in ((0, 68), (68, 129), (129, 189))]
    if ahead == FAR:
        assert odd(log) == [(16, 0), (2, 128), (0, None)]
    # A last record in 2099, and then another hour.
    log.send(0, *spread(3, 60), FAR)
    log.archive()
    assert log.pin(3) == {0: (189, 250), 1: (189, 189)}
    log.send(0, *spread(4, 60))
    log.archive()
    assert log.pin(4)[0] == (250, 310)
    assert_tiles(log)


def test_odd_timestamps_end_no_interval_when_they_were_ahead_of_the_commit_and_are_past_now(log: Log) -> None:
    # Half of the records of a producer whose clock is three hours ahead: their neighbours confirm each other.
    hours = [each for pair in zip(spread(0, 60), spread(3, 60), strict=True) for each in pair]
    log.send(0, *hours, *spread(1, 60))
    log.archive()
    with session() as ledger:
        committed = update(MicroBatch).where(MicroBatch.pipeline == log.pipeline.name)
        ledger.execute(committed.values(committed_at=START + HOUR))
    log.send(0, *spread(2, 60))
    log.archive()
    assert [log.pin(number)[0] for number in range(3)] == [(0, 120), (120, 180), (180, 240)]
    assert odd(log)[0] == (60, 1)


def test_late_record_is_found_and_odd_ones_stay_counted_when_pinned_again(log: Log) -> None:
    log.send(0, 0.1, FAR, 0.2)
    log.archive()
    assert log.pin(0)[0] == (0, 3)
    log.send(0, 0.3, FAR, 0.4, 1.1)
    log.archive()
    assert log.pin(0, repin=True)[0] == (0, 6)
    assert odd(log) == [(2, 1)]
    assert log.pin(1)[0] == (6, 7)
    assert_each_offset_is_in_one_interval(log, 0, 7)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3))])
def test_offset_is_in_one_interval_when_timestamps_and_order_of_pinning_vary(log: Log, seed: int) -> None:
    chosen = random.Random(seed)
    ends = []
    for partition in (0, 1):
        hours = sorted(chosen.uniform(0, 6) for _ in range(chosen.randrange(50, 400)))
        hours = [each + chosen.uniform(-0.05, 0.05) for each in hours]
        for _ in range(chosen.randrange(12)):
            ahead = chosen.choice((2.5, 30.0, FAR, -30.0, -400_000.0))
            hours[chosen.randrange(len(hours))] += ahead
        log.send(partition, *hours)
        ends.append(len(hours))
    log.archive()
    order = list(range(7))
    chosen.shuffle(order)
    for number in order:
        log.pin(number)
    assert_tiles(log)
    for partition, end in enumerate(ends):
        assert_each_offset_is_in_one_interval(log, partition, end)
    # Six hours of records: none of them is empty because of a timestamp.
    assert all(sum(map(len, each.ranges)) > 0 for each in log.pinned() if hour(0) <= each.interval <= hour(5))


def test_bisection_ends_where_a_full_read_does_when_the_span_is_long(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.send(0, FAR, *spread(0, 3000), *spread(1, 3000), *spread(2, 3000))
    log.archive()
    reads: list[int] = []
    read_windows = offset_search._read_windows

    def counted(reader: object, begins: dict[TopicPartition, int]) -> object:
        reads.append(len(begins))
        return read_windows(reader, begins)  # type: ignore[arg-type]

    monkeypatch.setattr(offset_search, "_read_windows", counted)
    monkeypatch.setattr(offset_search, "SCANNED", 10)
    assert log.pin(0)[0] == (0, 3001)
    assert log.pin(1)[0] == (3001, 6001)
    assert len(reads) < 50
    assert odd(log) == [(1, 0), (0, None)]


def test_broker_s_own_timestamps_end_intervals_as_before_when_the_topic_has_log_append_time(
    log: Log, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hour of these records has not passed yet.
    monkeypatch.setattr(pinning, "clock", lambda: datetime.now(UTC) + HOUR)
    log.delete()
    log.producer = kafka.producer()
    topic = NewTopic(log.topic, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    log.admin.create_topics([topic])[log.topic].result(30)
    log.send(0, FAR, 0.1, FAR)
    log.archive()
    # That in which the broker stamped them: it may have ended since.
    stamped = min(record.timestamp for record in audit.read_topic(home.kafka, log.topic).values())
    hours = (datetime.fromtimestamp(stamped / 1000, UTC) - START) // HOUR
    assert log.pin(hours - 1)[0] == (0, 0)
    assert log.pin(hours)[0] == (0, 3)
    assert odd(log)[-1] == (0, None)


def test_no_interval_ends_when_old_transactions_lie_beside_an_odd_timestamp(log: Log, home: Home) -> None:
    producer = transactional_producer(home.kafka, f"tx-{log.topic}")
    for hours in (spread(0, 20), [FAR], spread(1, 20)):
        producer.begin_transaction()
        for each in hours:
            at = int((START + each * HOUR).timestamp() * 1000)
            producer.produce(log.topic, b"x", partition=0, timestamp=at)
        producer.commit_transaction(30)
    log.archive()
    # A marker follows each transaction's records.
    assert log.pin(0)[0] == (0, 23)
    assert log.pin(1)[0] == (23, 44)
    assert odd(log) == [(1, 21), (0, None)]
