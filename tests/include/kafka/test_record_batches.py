"""How large a topic's batches are, told by its log; and what a fetch may hold then."""

from __future__ import annotations

import os

import pytest

from include import kafka
from include.kafka.record_batches import sample_batch
from include.offsets import OffsetRange, TopicPartition
from spark_jobs.spark.kafka_source import fetch_bytes
from tests.conftest import Home
from tests.support.transactions import transactional_producer

pytestmark = pytest.mark.services

WORDS = 4096
"""Bytes that a client may receive around a batch: metadata, headers."""


def write(home: Home, topic: str, records: int, per_batch: int, size: int = 1000) -> OffsetRange:
    """A topic with one partition, in batches of so many records."""
    kafka.create_topic(topic, 1)
    producer = home.producer(**{"linger.ms": 1000, "batch.num.messages": per_batch, "compression.type": "lz4"})
    for number in range(records):
        producer.produce(topic, os.urandom(size))
        if number % per_batch == per_batch - 1:
            producer.flush(30)
    producer.flush(30)
    return OffsetRange(TopicPartition(topic, 0), 0, records)


def test_batch_is_the_producer_s_when_it_is_sampled(in_process: Home) -> None:
    found = sample_batch(write(in_process, "seven", 70, 7))
    assert found is not None
    assert found.records == 7
    assert 7000 < found.bytes < 7000 + WORDS


def test_second_batch_counts_when_the_range_begins_in_the_middle_of_one(in_process: Home) -> None:
    whole = write(in_process, "begun", 30, 10)
    found = sample_batch(OffsetRange(whole.topic_partition, 9, 30))
    assert found is not None
    assert found.records == 10


def test_there_is_no_batch_when_nothing_is_visible(in_process: Home) -> None:
    kafka.create_topic("aborted", 1)
    producer = transactional_producer(in_process.kafka, "aborted")
    producer.begin_transaction()
    producer.produce("aborted", b"never seen")
    producer.flush(30)
    producer.abort_transaction(30)
    assert sample_batch(OffsetRange(TopicPartition("aborted", 0), 0, 2)) is None


def test_fetch_holds_one_batch_when_batches_are_few_or_large(in_process: Home) -> None:
    few = write(in_process, "few", 3000, 30)
    assert fetch_bytes([few]) == 1
    large = write(in_process, "large", 1200, 2, 40_000)
    assert fetch_bytes([large]) == 1


def test_fetch_holds_many_batches_when_they_are_many_and_small(in_process: Home) -> None:
    many = write(in_process, "many", 1200, 2)
    assert 16 * 2000 < fetch_bytes([many]) < 16 * (2000 + WORDS)
