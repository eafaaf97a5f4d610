"""The consumer group that shows a pipeline's position: told by Kafka, and never a reason for a stream to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from include import kafka
from include.errors import ServiceUnreachable
from include.kafka import consumer_group
from include.kafka.consumer_group import ConsumerGroup, owners_of
from include.offsets import TopicPartition as Partition
from tests.conftest import REPOSITORY, Home, wait_for
from tests.support.mock_cluster import Request, mock_cluster

pytestmark = pytest.mark.services

# In a process of its own, because a former bug ended the process.
COMMITS = """
import sys
from include import kafka
from include.kafka.consumer_group import ConsumerGroup, owners_of
from include.offsets import TopicPartition
kafka.create_topic("grouped", 2)
group = ConsumerGroup("grouped")
for line in sys.stdin:
    positions = {TopicPartition("grouped", 0): int(line), TopicPartition("grouped", 1): 7}
    print(group.commit(positions) or "done", flush=True)
"""


class Silent:
    """A consumer whose commits are answered only while `answers`."""

    def __init__(self, on_commit: Callable[[None, list[TopicPartition]], None]) -> None:
        self._on_commit = on_commit
        self._sent: list[TopicPartition] = []
        self.answers = False
        self.polls = 0

    def commit(self, offsets: list[TopicPartition], **_: bool) -> None:
        self._sent = offsets

    def poll(self, _: float) -> None:
        self.polls += 1
        if self.answers:
            self._on_commit(None, self._sent)


def test_commits_are_not_waited_for_when_one_had_no_answer_within_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch ends after its commit."""
    monkeypatch.setattr(consumer_group, "PATIENCE", 0.05)
    monkeypatch.setattr(kafka, "consumer", lambda **options: Silent(options["on_commit"]))
    group = ConsumerGroup("silent")
    consumer: Any = group._consumer

    def polls_of_commit(said: str) -> int:
        before = consumer.polls
        assert group.commit({Partition("silent", 0): 1}) == said
        return int(consumer.polls - before)

    assert polls_of_commit("no answer") > 1
    assert [polls_of_commit("no answer") for _ in range(2)] == [1, 1]
    consumer.answers = True
    assert polls_of_commit("") == 1
    consumer.answers = False
    assert polls_of_commit("no answer") > 1


def committed(home: Home) -> list[int]:
    client = Consumer({"bootstrap.servers": home.kafka, "group.id": "tidemark-grouped"})
    try:
        return [tp.offset for tp in client.committed([TopicPartition("grouped", n) for n in (0, 1)], timeout=20)]
    finally:
        client.close()


def test_positions_name_who_committed_them_last(in_process: Home) -> None:
    name = f"owned-{os.getpid()}"
    kafka.create_topic(name, 2)
    both = [Partition(name, number) for number in (0, 1)]

    def commit(owner: str, *positions: Partition) -> None:
        group = ConsumerGroup(name, owner)
        # The first one may find the group's coordinator still coming up.
        wait_for("the commit", lambda: not group.commit(dict.fromkeys(positions, 1)), 60)

    assert owners_of(name, both) == set()
    commit("one", *both)
    commit("", both[1])
    assert owners_of(name, both) == {"one"}
    commit("other", both[1])
    assert owners_of(name, both) == {"one", "other"}
    assert owners_of(name, ()) == set()
    # Of a topic that was deleted since.
    assert owners_of(name, [*both, Partition(f"{name}-gone", 0)]) == {"one", "other"}


@pytest.mark.parametrize(
    "errors",
    [[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 200, [KafkaError.NOT_COORDINATOR] * 200, [KafkaError.UNKNOWN] * 200],
    ids=["it loads", "it moves", "it fails"],
)
def test_nobody_is_no_answer_when_the_coordinator_gives_none(
    monkeypatch: pytest.MonkeyPatch, errors: list[int]
) -> None:
    monkeypatch.setattr(consumer_group, "_ASKED", 2)
    monkeypatch.setattr(consumer_group, "PATIENCE", 0.5)
    with mock_cluster() as cluster:
        cluster.create_topic("t")
        asked = [Partition("t", 0)]
        assert owners_of("p", asked) == set()
        cluster.fail(Request.OFFSET_FETCH, *errors)
        with pytest.raises((ServiceUnreachable, KafkaException)):
            owners_of("p", asked)
        # Who has no right to the group hears so when asking for its offsets, or for who coordinates it.
        for request in (Request.OFFSET_FETCH, Request.FIND_COORDINATOR):
            cluster.fail(Request.OFFSET_FETCH)
            cluster.fail(request, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 200)
            assert owners_of("p", asked) == set()


@pytest.mark.slow
def test_commits_are_given_up_while_the_broker_hangs_and_go_on_when_it_answers(home: Home) -> None:
    broker = home.services["kafka"]["pid"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMITS],
        env=home.environment(),
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def commit(offset: int) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{offset}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    # The first one may find the group's coordinator still coming up.
    wait_for("the first commit", lambda: commit(1) == "done", 60)
    assert committed(home) == [1, 7]
    os.kill(broker, signal.SIGSTOP)
    try:
        assert [commit(2), commit(3)] == ["no answer", "no answer"]
    finally:
        os.kill(broker, signal.SIGCONT)
    wait_for("a commit that is answered", lambda: commit(4) == "done", 60)
    assert committed(home) == [4, 7]
    process.stdin.close()
    assert process.wait(timeout=30) == 0
