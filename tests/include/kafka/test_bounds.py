"""First and end offsets on a real broker, with logs that are empty, cut, or held back by an open transaction."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition

from include import kafka
from include.errors import OffsetsLost
from include.kafka import client, gap_proof, truncation
from include.kafka.gap_proof import prove_gaps
from include.offsets import TopicPartition
from include.proof import verify
from include.settings import settings
from tests.conftest import Home, SetSettings, wait_for
from tests.support.transactions import transactional_producer

pytestmark = pytest.mark.services

MOMENT = 1_760_000_000


def test_bounds_are_those_of_the_log_when_it_is_empty_cut_or_held_back(in_process: Home) -> None:
    topic = f"bounds-{os.getpid()}"
    kafka.create_topic(topic, 3)
    empty, cut, held = (TopicPartition(topic, partition) for partition in range(3))
    producer = in_process.producer()
    for number in range(10):
        producer.produce(topic, b"x", partition=cut.partition, timestamp=1000 * (MOMENT + number))
    producer.produce(topic, b"x", partition=held.partition, timestamp=1000 * MOMENT)
    assert producer.flush(30) == 0
    client = kafka.admin()
    for future in client.delete_records([ClientTopicPartition(topic, cut.partition, 4)]).values():
        future.result(30)
    within = transactional_producer(in_process.kafka, f"bounds-{os.getpid()}")
    within.begin_transaction()
    for _ in range(5):
        within.produce(topic, b"x", partition=held.partition)
    within.flush(30)
    # A topic partition that is asked for twice is one.
    every = [held, cut, empty, cut]
    assert kafka.offset_bounds(every) == {empty: (0, 0), cut: (4, 10), held: (0, 1)}
    assert kafka.offset_bounds(every, "read_uncommitted") == {empty: (0, 0), cut: (4, 10), held: (0, 6)}
    within.commit_transaction(30)
    # A marker follows the records, some time after the commit was confirmed.
    wait_for("the marker", lambda: kafka.offset_bounds([held]) == {held: (0, 7)})
    assert kafka.offset_bounds([held], "read_uncommitted") == {held: (0, 7)}
    assert kafka.offset_bounds([]) == {}
    found = kafka.offsets_at(datetime.fromtimestamp(MOMENT + 7, UTC), [cut, empty, cut])
    assert found == {cut: 7, empty: None}
    assert kafka.newest_timestamp([empty, cut, cut]) == datetime.fromtimestamp(MOMENT + 9, UTC)
    assert kafka.newest_timestamp([empty]) is None
    assert kafka.newest_timestamp([]) is None


def test_offsets_are_lost_when_they_are_removed_before_the_second_reader_has_read_them(in_process: Home) -> None:
    cut = TopicPartition(f"removed-{os.getpid()}", 0)
    kafka.create_topic(cut.topic, 1)
    producer = in_process.producer()
    for _ in range(10):
        producer.produce(cut.topic, b"x")
    assert producer.flush(30) == 0
    client = kafka.admin()
    for future in client.delete_records([ClientTopicPartition(cut.topic, 0, 4)]).values():
        future.result(30)
    with pytest.raises(OffsetsLost, match=rf"{cut} offsets 2\.\.5 were removed while they were read") as raised:
        prove_gaps({cut: [(2, 6)]})
    assert raised.value.exit_code == 4
    assert prove_gaps({cut: [(4, 6)]})[cut].visible == 2


@pytest.fixture
def slow_fetches(in_process: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> None:
    """Every fetch takes half a second: the broker waits for more bytes than the log has."""
    properties = tmp_path / "kafka.properties"
    properties.touch(0o600)
    properties.write_text("fetch.min.bytes=100000000\n")
    monkeypatch.setattr(client, "_STATISTICS_MS", 50)
    set_settings(TIDEMARK_KAFKA_PROPERTIES=str(properties))


def test_aborted_records_are_no_silence_when_fetching_them_takes_longer_than_a_broker_may_be_silent(
    in_process: Home, slow_fetches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted, other = (TopicPartition(f"aborted-{os.getpid()}", partition) for partition in range(2))
    kafka.create_topic(aborted.topic, 2)
    aborting = transactional_producer(in_process.kafka, aborted.topic)
    aborting.begin_transaction()
    for _ in range(40):
        aborting.produce(aborted.topic, b"x" * 60_000, partition=aborted.partition)
        aborting.flush(30)
    aborting.abort_transaction(30)
    producer = in_process.producer()
    for tp in (aborted, other):
        producer.produce(tp.topic, b"x", partition=tp.partition, timestamp=1000 * MOMENT)
    assert producer.flush(30) == 0
    monkeypatch.setattr(gap_proof, "_PATIENCE", 2.0)
    proof = prove_gaps({aborted: [(0, 40)]})[aborted]
    assert (proof.offsets, proof.visible, proof.examples) == (40, 0, [((0, 40), 41)])
    # Some of them were fetched meanwhile, so at the first one's offset none is visible.
    monkeypatch.setattr(truncation, "TIMEOUT", 2.0)
    assert truncation.timestamps_at({aborted: 0, other: 0}) == {other: 1000 * MOMENT}
    monkeypatch.setattr(verify, "PATIENCE", 2.0)
    of_proof = {"topic": aborted.topic, "partition": aborted.partition, "from_offset": 0, "until_offset": 42}
    options = settings().kafka_client_options() | {"max.partition.fetch.bytes": 32 * 1024}
    assert verify._read_range(of_proof, options) == (0, {41: 1000 * MOMENT})
