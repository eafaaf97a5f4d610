"""Times of records as pages and proofs tell them, on a real broker: producers may set any timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from include import kafka
from include.kafka.gap_proof import prove_gaps
from include.kafka.truncation import timestamps_at
from include.offsets import TopicPartition
from tests.conftest import Home, settings_of

pytestmark = pytest.mark.services

USUAL = 1_760_000_000_000
BEYOND = 1_500_000_000_000_000
"""In the year 49502."""

TP = TopicPartition("odd-times", 0)


@pytest.fixture(scope="module", autouse=True)
def topic(home: Home) -> Iterator[None]:
    """A topic with a record beyond the calendar, and a usual one."""
    with settings_of(home):
        kafka.create_topic(TP.topic, 1)
        kafka.create_topic("too-late", 1)
        producer = home.producer()
        for timestamp in (BEYOND, USUAL):
            producer.produce(TP.topic, b"x", timestamp=timestamp, partition=0)
        assert producer.flush(30) == 0
        yield


def test_record_is_refused_by_the_embedded_broker_when_spark_could_not_read_its_timestamp(home: Home) -> None:
    refused: list[str] = []
    producer = home.producer()
    for timestamp in (USUAL * 1_000_000, 2**63 // 1000 + 1):
        producer.produce(
            "too-late", b"x", timestamp=timestamp, on_delivery=lambda error, _: refused.append(error and error.name())
        )
    assert producer.flush(30) == 0
    assert refused == ["INVALID_RECORD"] * 2


def test_record_beyond_the_calendar_has_no_time_and_hides_no_other() -> None:
    assert kafka.record_times({TP: 0}) == {}
    assert kafka.record_times({TP: 1}) == {TP: datetime.fromtimestamp(USUAL / 1000, UTC)}
    assert kafka.first_timestamp({TP: (0, 2)}) is None
    assert kafka.first_timestamp({TP: (1, 2)}) == datetime.fromtimestamp(USUAL / 1000, UTC)


def test_gap_is_proved_when_the_record_in_it_lies_beyond_the_calendar() -> None:
    proof = prove_gaps({TP: [(0, 1)]})[TP]
    assert (proof.visible, proof.offsets) == (1, 0)
    assert proof.seen == [(0, f"1 bytes, timestamp {BEYOND} ms")]


def test_timestamps_are_those_of_exactly_the_offsets() -> None:
    assert timestamps_at({TP: 0}) == {TP: BEYOND}
    assert timestamps_at({TP: 1}) == {TP: USUAL}
    assert timestamps_at({TP: 2}) == {}
    assert timestamps_at({TP: 7}) == {}
    assert timestamps_at({}) == {}
