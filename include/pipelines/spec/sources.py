"""Where records come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from include.errors import UsageError
from include.pipelines.spec.names import TOPIC
from include.times import parse_time

CLIENT_OPTIONS = frozenset(
    {
        "kafka.client.id",
        "kafka.client.rack",
        "kafka.client.dns.lookup",
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.records",
        "kafka.receive.buffer.bytes",
        "kafka.send.buffer.bytes",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.reconnect.backoff.max.ms",
        "kafka.retry.backoff.ms",
        "kafka.connections.max.idle.ms",
        "kafka.metadata.max.age.ms",
        "kafka.check.crcs",
    }
)
"""Options of Kafka's client that a pipeline may set. What decides which records are read is not among them, and
addresses and secrets are settings (`TIDEMARK_KAFKA_…`)."""


@dataclass(frozen=True)
class KafkaTopics:
    """Topics to read: a set of names, a pattern, or topic partitions."""

    subscribe: tuple[str, ...] = ()
    """Names of the topics."""
    pattern: str = ""
    """A regular expression instead, for whole names; a topic that appears later joins from its start."""
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of the topic partitions by topic instead; the topics must exist."""
    starting_offsets: Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] = "earliest"
    """Where the first stream begins: everywhere alike, or per topic and topic partition (others: earliest)."""
    starting_time: str = ""
    """Or at the first record of this time or later, e.g. `2026-11-20T05:00:00Z`."""
    fail_on_data_loss: bool = True
    """Whether offsets that Kafka removed before they were read stop the stream until somebody accepts the loss;
    else the stream accepts, records and reports it by itself."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Kafka's client, of those in `CLIENT_OPTIONS`, e.g. `{"kafka.fetch.max.wait.ms": "100"}`."""
    topic_partitions: int = 4
    """How many partitions a topic gets when Tidemark creates it."""
    max_offsets_per_trigger: int = 500_000
    """How many offsets one micro-batch covers at most."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.subscribe, self.pattern, self.assign))) != 1:
            raise UsageError("a source needs one of subscribe, pattern and assign")
        for topic in self.named:
            if not TOPIC.fullmatch(topic):
                raise UsageError(f"topic {topic!r} is not a Kafka topic name")
        if unknown := sorted(self.options.keys() - CLIENT_OPTIONS):
            raise UsageError(
                f"the option {unknown[0]!r} cannot be set by a pipeline",
                remedy=f"one of {', '.join(sorted(CLIENT_OPTIONS))}",
            )
        if self.starting_time:
            parse_time(self.starting_time)
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"the pattern {self.pattern!r} is no regular expression: {error}") from None

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are declared by name; none for a pattern."""
        return self.subscribe or tuple(self.assign)

    def reads(self, topic: str) -> bool:
        """Return whether a topic belongs to the source."""
        return topic in self.named or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def __str__(self) -> str:
        return ", ".join(self.named) or f"topics like {self.pattern}"
