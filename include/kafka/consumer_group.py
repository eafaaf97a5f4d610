"""A pipeline's position as offsets of a Kafka consumer group, for tools that watch lag there.

The ledger alone says what is committed. Each position also names the ledger that committed it, so that the stream of
another one on the same cluster finds it (`include/streams/written_topics.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from include import kafka
from include.kafka.refusals import asked_again, is_denied, unreachable_error
from include.offsets import TopicPartition
from include.waiting import wait_for

PATIENCE = 5.0
"""Seconds after which a commit is given up."""

_PAUSE = 60.0
"""Seconds after a commit without an answer in which none is waited for: each wait holds up a micro-batch."""


_ASKED = 6
"""How often a group's coordinator is asked: the first one of a cluster makes Kafka's own topic for it."""


def group_of(pipeline: str) -> str:
    """Return the name of the pipeline's consumer group."""
    return f"tidemark-{pipeline}"


class ConsumerGroup:
    """The pipeline's group: positions are committed to it without joining it, and a failed commit is not repeated."""

    def __init__(self, pipeline: str, owner: str = "") -> None:
        self.name = group_of(pipeline)
        self._owner = owner
        # A consumer without subscription: an admin client that times out can end the whole process here.
        self._consumer = kafka.consumer(**{"group.id": self.name, "on_commit": self._on_commit})
        self._answers: list[tuple[set[tuple[str, int, int]], str]] = []
        """Positions of each answered commit, and why it failed; empty when it did not."""
        self._waits_from = 0.0
        """When answers are waited for again."""

    def commit(self, positions: Mapping[TopicPartition, int]) -> str:
        """Commit the next offset of each topic partition and return why that failed; empty when it did not."""
        offsets = [
            confluent_kafka.TopicPartition(tp.topic, tp.partition, at, self._owner)
            for tp, at in sorted(positions.items())
        ]
        if not offsets:
            return ""
        self._answers.clear()
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
            wanted = _positions(offsets)
            # The answer to an earlier commit may come only now.
            seconds = PATIENCE if time.monotonic() >= self._waits_from else 0
            answer = wait_for(lambda: self._answer(wanted), lambda said: said is not None, seconds=seconds, every=0)
        except KafkaException as error:
            return str(error.args[0])
        if answer is not None:
            self._waits_from = 0.0
            return answer
        if seconds:
            self._waits_from = time.monotonic() + _PAUSE
        return "no answer"

    def _answer(self, wanted: set[tuple[str, int, int]]) -> str | None:
        self._consumer.poll(0.1)
        return next((said for committed, said in self._answers if not committed or committed == wanted), None)

    def _on_commit(self, error: KafkaError | None, offsets: list[confluent_kafka.TopicPartition]) -> None:
        refused = [f"{each.topic}-{each.partition}: {each.error}" for each in offsets if each.error is not None]
        said = "; ".join(refused) or (str(error) if error is not None else "")
        self._answers.append((_positions(offsets), said))


def owners_of(pipeline: str, topic_partitions: Iterable[TopicPartition]) -> set[str]:
    """Return whom the group's positions name as the one that committed them; nobody without the right to ask.

    Raises ServiceUnreachable when no broker answers for the group: nobody is no answer then.
    """
    wanted = [confluent_kafka.TopicPartition(tp.topic, tp.partition) for tp in sorted(topic_partitions)]
    if not wanted:
        return set()
    reader = kafka.consumer(**{"group.id": group_of(pipeline)})
    try:
        for _ in range(_ASKED):
            try:
                answered = asked_again(lambda: reader.committed(wanted, timeout=PATIENCE))
            except KafkaException as error:
                refused = error.args[0]
                # The group is optional: without the right to it a stream runs, too. Who may not even ask for its
                # coordinator hears of that as an event, and the question has no answer.
                if is_denied(refused) or _is_event_of_denial(reader.poll(0)):
                    return set()
                unreachable = unreachable_error(refused) or error
            else:
                return {each.metadata for each in answered if each.metadata}
        raise unreachable
    finally:
        reader.close()


def _is_event_of_denial(message: confluent_kafka.Message | None) -> bool:
    error = message.error() if message is not None else None
    return error is not None and is_denied(error)


def _positions(offsets: Iterable[confluent_kafka.TopicPartition]) -> set[tuple[str, int, int]]:
    return {(each.topic, each.partition, each.offset) for each in offsets}
