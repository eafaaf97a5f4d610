"""Where records come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from include.errors import UsageError
from include.pipelines.spec.names import check_count, check_topic, check_tuple
from include.times import parse_time

OWN_OPTIONS = frozenset(
    {
        "kafka.allow.auto.create.topics",
        "kafka.auto.offset.reset",
        "kafka.enable.auto.commit",
        "kafka.exclude.internal.topics",
        "kafka.group.id",
        "kafka.group.instance.id",
        "kafka.group.protocol",
        "kafka.interceptor.classes",
        "kafka.isolation.level",
        "kafka.key.deserializer",
        "kafka.value.deserializer",
    }
)
"""Options of Kafka's client that a pipeline may not set: they decide which records are read."""

PRODUCER_OPTIONS: Mapping[str, str] = {
    "kafka.batch.size": "batch.size",
    "kafka.client.dns.lookup": "client.dns.lookup",
    "kafka.client.id": "client.id",
    "kafka.compression.type": "compression.type",
    "kafka.connections.max.idle.ms": "connections.max.idle.ms",
    "kafka.linger.ms": "linger.ms",
    "kafka.max.request.size": "message.max.bytes",
    "kafka.metadata.max.age.ms": "metadata.max.age.ms",
    "kafka.receive.buffer.bytes": "socket.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "kafka.reconnect.backoff.ms": "reconnect.backoff.ms",
    "kafka.request.timeout.ms": "request.timeout.ms",
    "kafka.retry.backoff.ms": "retry.backoff.ms",
    "kafka.send.buffer.bytes": "socket.send.buffer.bytes",
}
"""Options of Kafka's producer that an output may set, with the client's names for them. What decides whether a message
is written once is not among them, and addresses and secrets are settings (`TIDEMARK_KAFKA_…`)."""

_SETTINGS = re.compile(r"kafka\.(bootstrap\.|config\.providers|sasl\.|security\.|ssl\.)")
"""Addresses and secrets: those are settings (`TIDEMARK_KAFKA_…`)."""


_START = 'write "earliest", "latest", or offsets from 0 on: {"door-bells": {0: 1200}}; other topic partitions: earliest'
"""How a start is declared."""


INTERNAL = "__"
"""How the names of topics begin that no pattern matches."""


@dataclass(frozen=True)
class KafkaTopics:
    """Topics to read: a set of names, a pattern, or topic partitions."""

    subscribe: tuple[str, ...] = ()
    """Names of the topics."""
    pattern: str = ""
    """A regular expression instead, for whole names; a topic that appears later joins from its start. Names that begin
    with `__` are not matched: Kafka's own topics have such names."""
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
    """Options of Kafka's Java client, e.g. `{"kafka.fetch.max.wait.ms": "100"}`, except those in `OWN_OPTIONS`."""
    topic_partitions: int = 4
    """How many partitions a topic gets when Tidemark creates it."""
    max_offsets_per_trigger: int = 500_000
    """How many offsets one micro-batch covers at most."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.subscribe, self.pattern, self.assign))) != 1:
            raise UsageError("a source needs one of subscribe, pattern and assign")
        check_tuple(self.subscribe, "subscribe")
        for topic, numbers in self.assign.items():
            check_tuple(numbers, f"assign[{topic!r}]")
        for topic in self.named:
            check_topic(topic)
        for option in sorted(self.options):
            if not option.startswith("kafka."):
                raise UsageError(
                    f"the option {option!r} cannot be set by a pipeline",
                    remedy=f"kafka.{option}, if it is the client's",
                )
            if option in OWN_OPTIONS:
                raise UsageError(
                    f"the option {option!r} cannot be set by a pipeline: it decides which records are read"
                )
            if _SETTINGS.match(option):
                raise UsageError(
                    f"the option {option!r} cannot be set by a pipeline",
                    remedy="write it into the file that TIDEMARK_KAFKA_PROPERTIES names",
                )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"the pattern {self.pattern!r} is no regular expression: {error}") from None
        for count in ("topic_partitions", "max_offsets_per_trigger"):
            check_count(getattr(self, count), f"{count} of the source")
        self._check_start()

    def _check_start(self) -> None:
        """Raise UsageError unless the first stream's start is declared once, and by offsets that can be read."""
        offsets = self.starting_offsets
        if isinstance(offsets, str):
            if offsets not in ("earliest", "latest"):
                raise UsageError(f"starting_offsets={offsets!r} is not known", remedy=_START)
        elif not isinstance(offsets, Mapping):
            raise UsageError(f"starting_offsets={offsets!r} is not known", remedy=_START)
        else:
            for topic, numbers in offsets.items():
                self._check_offsets(topic, numbers)
        if self.starting_time:
            parse_time(self.starting_time)
            if offsets and offsets != "earliest":
                raise UsageError(
                    "a source has both starting_offsets and starting_time", remedy="declare one of the two"
                )

    def _check_offsets(self, topic: str, numbers: Mapping[int, int]) -> None:
        if not self.reads(topic):
            raise UsageError(f"starting_offsets names the topic {topic!r}, which the source does not read ({self})")
        if not isinstance(numbers, Mapping):
            raise UsageError(f"starting_offsets has {numbers!r} for the topic {topic}", remedy=_START)
        for number, offset in numbers.items():
            if topic in self.assign and number not in self.assign[topic]:
                raise UsageError(f"starting_offsets names {topic}-{number}, which the source does not assign")
            if not isinstance(number, int) or not isinstance(offset, int) or number < 0 or offset < 0:
                raise UsageError(f"starting_offsets has {offset!r} for {topic}-{number}", remedy=_START)

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are declared by name; none for a pattern."""
        return self.subscribe or tuple(self.assign)

    def reads(self, topic: str) -> bool:
        """Return whether a topic belongs to the source."""
        is_matched = self.pattern and not topic.startswith(INTERNAL) and re.fullmatch(self.pattern, topic)
        return topic in self.named or bool(is_matched)

    def common(self, other: KafkaTopics) -> str:
        """Return in words what both sources read; empty when their declarations show nothing.

        Whether two different patterns match one name is not found out.
        """
        both = {topic for topic in (*self.named, *other.named) if self.reads(topic) and other.reads(topic)}
        for topic in sorted(both):
            ours, theirs = self.assign.get(topic), other.assign.get(topic)
            if ours is None or theirs is None or {*ours} & {*theirs}:
                return f"the topic {topic}"
        return f"topics like {self.pattern}" if self.pattern and self.pattern == other.pattern else ""

    def __str__(self) -> str:
        return ", ".join(self.named) or f"topics like {self.pattern}"
