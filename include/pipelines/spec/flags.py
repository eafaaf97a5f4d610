"""Records that are flagged as they come, and the limits that their rules compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from include.errors import UsageError
from include.pipelines.spec.names import TOPIC
from include.times import parse_duration


class Limit(NamedTuple):
    """What the batch layer learned about one subject, for a rule to compare with."""

    rule: str
    subject: str
    """What it is about, e.g. a category or a bidder."""
    above: str | None = None
    """A decimal number; None for a rule that only asks whether the subject is known."""


@dataclass(frozen=True)
class Flags:
    """Archive rows that stateless rules single out: written to a topic in real time, recomputed per interval."""

    topic: str
    rules: str
    """Name of the transform: learned limits to a column, array<struct<rule, above>> of an archive row."""
    limits: str
    """Name of the transform: registered rows of the views in `learned_from` to limits: rule, subject, above."""
    learned_from: tuple[str, ...]
    """Names of the views that the limits are learned from."""
    columns: tuple[str, ...]
    """Columns of the archive row that a flag carries."""
    learned_over: str = "7d"
    """Limits are learned from so much of the registered intervals, counted back from the last one."""
    commit_every: str = "30s"
    """How often the real-time query commits its position; no flag waits for it."""
    topic_partitions: int = 4

    def __post_init__(self) -> None:
        for duration in (self.learned_over, self.commit_every):
            parse_duration(duration)
        if not TOPIC.fullmatch(self.topic):
            raise UsageError(f"topic {self.topic!r} is not a Kafka topic name")
