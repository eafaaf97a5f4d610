"""Proof that offsets hold no visible record: a second reader reads where Spark saw none.

Compaction, transaction markers and aborted transactions leave offsets without a visible record. That Spark saw
none proves nothing, so a read_committed consumer of another client (librdkafka) reads those offsets again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from include import kafka
from include.errors import LogTruncated, OffsetsLost, ServiceUnreachable
from include.kafka.client import Progress
from include.kafka.truncation import GO_ON
from include.offsets import TopicPartition
from include.settings import settings
from include.times import format_timestamp

Span = tuple[int, int]
"""Offsets of one topic partition without a visible record: the first included, the last not."""

NEAR = 200
"""Spans at most this many offsets apart are read without a seek between them: a seek fetches about as much."""

EXAMPLES = 10
"""How many spans, and how many records found in them, are listed."""

_LONG = 5_000
_SMALL_FETCH, _LARGE_FETCH = 32 * 1024, 1024 * 1024
_PATIENCE = 60.0
"""Seconds in which nothing is fetched until the broker counts as unreachable."""


@dataclass
class GapProof:
    """What the second reader found in the spans of one topic partition."""

    topic_partition: TopicPartition
    spans: int = 0
    offsets: int = 0
    """Offsets of the spans in which no visible record lies."""
    examples: list[tuple[Span, int | None]] = field(default_factory=list)
    """The first spans, each with the next visible record; None at the end of the topic partition."""
    visible: int = 0
    """Records that the second reader sees in the spans."""
    seen: list[tuple[int, str]] = field(default_factory=list)
    """The first of them: offset, and what it is."""
    reads: int = 0
    """How often the reader was moved to another offset."""

    def evidence(self) -> str:
        """Return the spans with the visible record after each, as text."""
        named = ", ".join(
            f"{_span_words(span)} (next visible record: {'none yet' if after is None else after})"
            for span, after in self.examples
        )
        more = f" and {self.spans - len(self.examples)} more spans" if self.spans > len(self.examples) else ""
        return f"offsets {named}{more}: {self.offsets} in all, confirmed by a second reader"


def _span_words(span: Span) -> str:
    return str(span[0]) if span[1] - span[0] == 1 else f"{span[0]}..{span[1] - 1}"


def prove_gaps(spans: Mapping[TopicPartition, Sequence[Span]]) -> dict[TopicPartition, GapProof]:
    """Read the spans (disjoint, in order) again with a read_committed consumer.

    Costs nothing without spans, a seek with a small fetch for a span far from others, and never more than
    one pass from a topic partition's first span to its last.
    Raises OffsetsLost when retention cut into them, ServiceUnreachable.
    """
    with kafka.reaching_kafka(*kafka.topics_of(spans)):
        return {tp: _prove(tp, wanted) for tp, wanted in spans.items() if wanted}


def runs(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Yield the spans in groups that are read without a seek."""
    run: list[Span] = []
    for span in spans:
        if run and span[0] - run[-1][1] > NEAR:
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def _prove(tp: TopicPartition, spans: Sequence[Span]) -> GapProof:
    proof = GapProof(tp)
    groups = list(runs(spans))
    longest = max(run[-1][1] - run[0][0] for run in groups)
    fetch = _LARGE_FETCH if longest > _LONG else _SMALL_FETCH
    progress = Progress()
    options = kafka.few_records(fetch) | progress.options() | {"queued.max.messages.kbytes": fetch // 1024}
    reader = kafka.consumer(**options)
    try:
        for run in groups:
            reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, run[0][0])])
            proof.reads += 1
            _read_run(reader, progress, run, proof)
    finally:
        reader.close()
    return proof


def _read_run(reader: Consumer, progress: Progress, run: Sequence[Span], proof: GapProof) -> None:
    visible_here, at = 0, 0
    while at < len(run):
        message = _next(reader, progress, proof.topic_partition, run[at])
        end = message.error() is not None
        if end and message.offset() < run[at][1]:
            raise LogTruncated(
                f"{proof.topic_partition} ends at offset {message.offset()}, it was read up to {run[-1][1]} before: "
                "the log was truncated",
                remedy=GO_ON,
            )
        offset = message.offset()
        while at < len(run) and run[at][1] <= offset:
            proof.spans += 1
            proof.offsets += run[at][1] - run[at][0] - visible_here
            if len(proof.examples) < EXAMPLES:
                proof.examples.append((run[at], None if end else offset))
            visible_here, at = 0, at + 1
        if at < len(run) and not end and run[at][0] <= offset:
            visible_here += 1
            proof.visible += 1
            if len(proof.seen) < EXAMPLES:
                proof.seen.append((offset, _describe(message)))


def _next(reader: Consumer, progress: Progress, tp: TopicPartition, span: Span) -> Message:
    """Return the next visible record, or the event that the topic partition's end was reached."""
    message = kafka.next_message(reader, _PATIENCE, progress)
    if message is None:
        raise ServiceUnreachable(
            f"Kafka at {settings().kafka_address()}: nothing of {tp} from offset {span[0]} within {_PATIENCE:.0f} s",
            remedy="./tidemark status; ./tidemark up kafka",
        )
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return message
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        raise OffsetsLost(
            f"{tp} offsets {_span_words(span)} were removed while they were read",
            remedy="read what was archived of them instead: --source archive",
        )
    raise KafkaException(error)


def _describe(message: Message) -> str:
    moment = format_timestamp(message.timestamp()[1])
    value = message.value()
    return f"{'a null value' if value is None else f'{len(value)} bytes'}, timestamp {moment}"
