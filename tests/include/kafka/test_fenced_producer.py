"""Writing a speed view's topics: a driver that sleeps in the middle of it overwrites nothing when it wakes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from include import kafka
from include.errors import AnotherWriter, TidemarkError, UsageError
from include.kafka import fenced_producer
from include.kafka.fenced_producer import FencedProducer, Message
from include.ledger.streams import writers
from tests.conftest import REPOSITORY, Home, end_of, wait_for
from tests.support import audit

pytestmark = pytest.mark.services

NUMBERS = itertools.count()
LEASE = "4"
KEYS = [f"key-{number}" for number in range(20)]

SLEEPER = """
import sys
from include.errors import TidemarkError
from include.kafka.fenced_producer import FencedProducer
from include.ledger.streams import writers

topic, keys = sys.argv[1], sys.argv[2:]
lease = writers.acquire(topic)
producer = FencedProducer(topic, "view", lambda: writers.renew(lease))
try:
    producer.write((topic, key.encode(), b'{"of": "older"}') for key in keys)
except TidemarkError as error:
    sys.exit(f"{error.exit_code} {error}")
"""
"""A driver, without Spark."""


def messages(topic: str, of: str, keys: list[str] = KEYS) -> Iterator[Message]:
    return ((topic, key.encode(), f'{{"of": "{of}"}}'.encode()) for key in keys)


@pytest.fixture
def topic(in_process: Home) -> str:
    name = f"fenced-{os.getpid()}-{next(NUMBERS)}"
    kafka.create_topic(name, 3, compacted=True)
    return name


@pytest.fixture
def ready_for_transactions(in_process: Home) -> None:
    """The broker's first transaction is over: it waits for the topic that holds their state, longer than a lease."""
    other = f"fenced-before-{os.getpid()}-{next(NUMBERS)}"
    kafka.create_topic(other, 1)
    FencedProducer(other, "view", lambda: None).write(messages(other, "earlier"))


@contextmanager
def sleeping(home: Home, topic: str, moment: str) -> Iterator[psutil.Popen]:
    """A driver that stopped itself at that moment, long enough ago that its lease has expired."""
    environment = home.environment(TIDEMARK_PAUSE_AT=moment, TIDEMARK_LEASE_SECONDS=LEASE)
    command = [sys.executable, "-c", SLEEPER, topic, *KEYS]
    process = psutil.Popen(command, env=environment, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        wait_for("the driver to sleep", lambda: process.poll() is not None or _is_stopped(process), 60)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        end_of(process)


def _is_stopped(process: psutil.Popen) -> bool:
    # A stopped thread does not stop the process at once.
    return bool(process.status() == psutil.STATUS_STOPPED)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("topic_fenced", marks=pytest.mark.slow),
        pytest.param("topic_written", marks=pytest.mark.slow),
        "topic_checked",
    ],
)
def test_sleeper_overwrites_nothing_when_it_wakes_while_a_newer_driver_writes(
    in_process: Home, ready_for_transactions: None, topic: str, moment: str
) -> None:
    with sleeping(in_process, topic, moment) as sleeper:
        lease = writers.acquire(topic)
        newer = FencedProducer(topic, "view", lambda: writers.renew(lease))
        assert newer.write(messages(topic, "newer")) == len(KEYS)
        os.kill(sleeper.pid, signal.SIGCONT)
        _, said = sleeper.communicate(timeout=60)
    assert said.startswith(f"5 {topic}: this driver's lease is over"), said
    assert {value["of"] for value in audit.last_values(in_process.kafka, topic).values()} == {"newer"}
    # Nothing that the older one wrote can be read, and readers are not held back.
    newer.write(messages(topic, "newest"))
    writers.release(lease)
    read = [record.value for record in audit.read_topic(in_process.kafka, topic).values()]
    assert sorted(set(read)) == [b'{"of": "newer"}', b'{"of": "newest"}']
    assert len(read) == 2 * len(KEYS)


def test_holder_of_the_lease_writes_its_messages_once_when_an_older_one_has_raised_the_epoch(
    in_process: Home, topic: str
) -> None:
    lost = iter([AnotherWriter("this driver's lease is over")])

    def over() -> None:
        raise next(lost)

    holder = FencedProducer(topic, "view", lambda: None)
    holder.write(messages(topic, "first"))
    with pytest.raises(AnotherWriter, match="lease is over"):
        FencedProducer(topic, "view", over).write(messages(topic, "zombie"))
    holder.write(messages(topic, "second"))
    read = [record.value for record in audit.read_topic(in_process.kafka, topic).values()]
    assert [read.count(f'{{"of": "{of}"}}'.encode()) for of in ("first", "second", "zombie")] == [20, 20, 0]


def test_driver_gives_up_with_exit_code_5_when_a_stranger_holds_its_id_for_ever(in_process: Home, topic: str) -> None:
    strangers: list[FencedProducer] = []

    def usurp() -> None:
        strangers.append(FencedProducer(topic, "view", lambda: None))
        strangers[-1].write(messages(topic, "stranger"))

    driver = FencedProducer(topic, "view", usurp)
    with pytest.raises(AnotherWriter, match=f"transactional id tidemark-{topic}-view shuts out this driver of view"):
        driver.write(messages(topic, "driver"))
    assert {value["of"] for value in audit.last_values(in_process.kafka, topic).values()} == {"stranger"}


def test_brokers_setting_is_named_when_transactions_may_not_last_as_long_as_the_driver_s(
    in_process: Home, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker allows 15 minutes.
    monkeypatch.setattr(fenced_producer, "PATIENCE", 1000.0)
    checks: list[None] = []
    driver = FencedProducer(topic, "view", lambda: checks.append(None))
    with pytest.raises(UsageError, match=r"transaction\.timeout\.ms of 1000000") as refused:
        driver.write(messages(topic, "driver"))
    assert "transaction.max.timeout.ms" in str(refused.value)
    # It is not tried again.
    assert checks == []


def test_lease_is_checked_before_each_commit_when_chunks_are_written(
    in_process: Home, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_producer, "MESSAGES", 8)
    checks: list[int] = []

    def check() -> None:
        checks.append(len(audit.read_topic(in_process.kafka, topic)))
        if len(checks) == 4:
            raise AnotherWriter("this driver's lease is over")

    with pytest.raises(AnotherWriter):
        FencedProducer(topic, "view", check).write(messages(topic, "one"))
    # At the first check the producer was opened; the third chunk is not committed.
    assert checks == [0, 0, 8, 16]
    assert len(audit.read_topic(in_process.kafka, topic)) == 16


def test_transactions_are_bounded_by_bytes_when_messages_are_large(
    in_process: Home, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_producer, "BYTES", 1_000_000)
    seen: list[int] = []
    producer = FencedProducer(topic, "view", lambda: seen.append(len(audit.read_topic(in_process.kafka, topic))))
    large = [(topic, key.encode(), b"x" * 300_000) for key in KEYS[:8]]
    assert producer.write(iter(large)) == 8
    # After the check at the opening: three messages, three, and two.
    assert seen == [0, 0, 3, 6]
    assert len(audit.read_topic(in_process.kafka, topic)) == 8


def test_every_message_is_committed_when_they_are_larger_than_the_client_s_queue(in_process: Home, topic: str) -> None:
    producer = FencedProducer(topic, "view", lambda: None, {"queue.buffering.max.kbytes": "1024"})
    large = [(topic, key.encode(), b"x" * 300_000) for key in KEYS]
    assert producer.write(iter(large)) == len(KEYS)
    assert len(audit.read_topic(in_process.kafka, topic)) == len(KEYS)


def test_messages_are_readable_when_write_has_returned(in_process: Home, topic: str) -> None:
    producer = FencedProducer(topic, "view", lambda: None)
    partitions = kafka.topic_partitions_of(kafka.describe_topics([topic]).values())
    for _ in range(20):
        producer.write(messages(topic, "one"))
        # The end for readers of committed records is the log's end: the transactions' markers are there too.
        assert kafka.offset_bounds(partitions) == kafka.offset_bounds(partitions, "read_uncommitted")


def test_message_is_refused_and_blocks_no_reader_when_it_is_too_large(in_process: Home, topic: str) -> None:
    producer = FencedProducer(topic, "view", lambda: None)
    with pytest.raises(TidemarkError, match=r"what view writes: .*too large.* takes 1048588 bytes"):
        producer.write([(topic, b"a", b"{}"), (topic, b"b", b"x" * 2_000_000)])
    producer.write([(topic, b"c", b"{}")])
    assert audit.last_values(in_process.kafka, topic) == {"c": {}}


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Of Kafka's own tests (UtilsTest.testMurmur2).
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536)],
)
def test_topic_partition_is_that_of_java_s_producers_when_a_message_has_a_key(
    in_process: Home, topic: str, key: str, hashed: int
) -> None:
    FencedProducer(topic, "view", lambda: None).write(messages(topic, "one", [key]))
    [(_, partition, _)] = audit.read_topic(in_process.kafka, topic)
    assert partition == (hashed & 0x7FFFFFFF) % 3
