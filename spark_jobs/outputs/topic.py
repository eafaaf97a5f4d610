"""An output's messages for topics: at least once, with the row's coordinates as headers.

A message that no broker would take (too large, without a key for a compacted topic, for a topic that is not declared)
is refused before anything is sent, and the others are sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.crash_points import crash_point
from include.kafka.client import CLIENT_LIMIT
from include.kafka.fenced_producer import FencedProducer, Message, headers_of
from include.kafka.topics import TopicLimits
from include.ledger.archive.row_outputs import MOST_REFUSED, Refused, Unsent, too_many
from include.ledger.streams import writers
from include.pipelines.spec import IDENTITY, PRODUCER_OPTIONS, KafkaTopic, Pipeline, Rows
from include.pipelines.spec.names import TOPIC_ID
from spark_jobs.outputs.frames import AS_JSON, each_in_order


@dataclass
class TopicTarget:
    """Writes one message per row in transactions of a producer that fences off an older driver's."""

    pipeline: Pipeline
    output: Rows
    to: KafkaTopic
    lease: writers.Lease
    _refused: list[Refused] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._options = {PRODUCER_OPTIONS[name]: value for name, value in self.to.options.items()}
        self._most = int(self._options.get("message.max.bytes", CLIENT_LIMIT))
        self._producer = FencedProducer(self.pipeline.name, self.output.name, lambda: writers.renew(self.lease))

    def send(self, rows: DataFrame, unsent: Unsent) -> tuple[int, Sequence[Refused]]:
        """Write the rows; return their number, and the rows that no broker would take.

        Raises AnotherWriter, ServiceUnreachable, UsageError for two rows of the same coordinates, or TidemarkError for
        what the broker refuses.
        """
        self._refused = []
        limits = {topic: kafka.topic_limits(topic, self._most) for topic in self.to.topics}
        batch = min(each.batch for each in limits.values())
        # For the next client that it opens.
        self._producer.options = {"batch.size": str(batch), **self._options}
        sent = self._producer.write(self._messages(rows, unsent, limits))
        crash_point("output_sent")
        return sent, self._refused

    def reached(self) -> None:
        """Return None: a topic does not say up to where it has rows."""

    def _messages(self, rows: DataFrame, unsent: Unsent, limits: dict[str, TopicLimits]) -> Iterator[Message]:
        messages = rows.select(*IDENTITY, *self._columns(rows))
        for row in each_in_order(self.pipeline, self.output, messages, unsent):
            *at, key, value, topic = row
            names = [*zip(IDENTITY, at, strict=True), (TOPIC_ID, unsent.topic_ids[at[0]])]
            if key is None and not self._has_key(rows):
                key = json.dumps(dict(names)).encode()
            message = (
                str(topic),
                None if key is None else bytes(key),
                None if value is None else bytes(value),
                {name: str(each).encode() for name, each in names},
            )
            if reason := _refusal(message, limits):
                self._refused.append(Refused(at[0], at[1], at[2], at[3], *reason))
                if len(self._refused) > MOST_REFUSED:
                    raise too_many(self.pipeline.name, self.output.name, self._refused, 0)
            else:
                yield message

    def _has_key(self, rows: DataFrame) -> bool:
        return bool(self.to.key) or ("key" in rows.columns and bool(self.output.rows))

    def _columns(self, rows: DataFrame) -> list[Column]:
        """Return key, value and topic of the message of a row, the first two as bytes.

        A transform may return columns of these names; in the archive's rows they are ordinary columns.
        """
        made = set(rows.columns) & {"key", "value", "topic"} if self.output.rows else set()
        key = F.to_json(F.struct(*self.to.key), AS_JSON) if self.to.key else F.lit(None)
        if not self.to.key and "key" in made:
            key = F.col("key")
        carried = [name for name in rows.columns if name not in {*IDENTITY, *made}]
        value = F.col("value") if "value" in made else F.to_json(F.struct(*carried), AS_JSON)
        topic = F.lit(self.to.topic) if self.to.topic else F.col("topic").cast("string")
        return [key.cast("binary").alias("m_key"), value.cast("binary").alias("m_value"), topic.alias("m_topic")]


def _refusal(message: Message, limits: dict[str, TopicLimits]) -> tuple[str, str] | None:
    """Return reason and detail when no broker would take the message."""
    topic, key, value = message[:3]
    if topic not in limits:
        return "undeclared_topic", f"the row names the topic {topic[:100]!r}, which its output does not declare"
    if key is None and limits[topic].is_compacted:
        return "no_key", f"the topic {topic} is compacted, and takes no message without a key"
    size = len(key or b"") + len(value or b"") + sum(len(n) + len(v) for n, v in headers_of(message).items())
    if size > limits[topic].largest:
        return "too_large", f"a message of {size} bytes; the topic {topic} takes {limits[topic].largest}"
    return None
