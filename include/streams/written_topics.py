"""The topics that a pipeline's stream writes: made when missing, unless they have to hold what was written before.

Another ledger's stream of the pipeline may write them as well, on the same cluster. Each would replace the other's
values, and delete those that its own base lacks, so the second one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message

from include import kafka
from include.errors import UsageError
from include.kafka.bounds import first_messages
from include.kafka.consumer_group import group_of, owners_of
from include.kafka.fenced_producer import PATIENCE
from include.ledger.archive import micro_batches
from include.ledger.archive.positions import topics_that_left
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.overview import began_first, is_opened_by_erasures
from include.offsets import TopicIdentity, TopicPartition
from include.outputs.connection import database_of
from include.pipelines.spec import PRODUCER_OPTIONS, AdditiveView, KafkaMessages, KafkaTopic, Pipeline
from include.pipelines.spec.views import VERSION_HEADER
from include.settings import settings
from include.times import format_time
from include.waiting import wait_for

_APART = (
    "two installations share a cluster only under other names of pipelines and topics: include/docs/deployment.md, "
    "“Two installations”"
)

_TRANSACTION_SECONDS = PATIENCE + 15
"""After which an open transaction is none of the stream's own: brokers end those when they look next, every 10 s."""


def owner_of(pipeline: str) -> str:
    """Return how this ledger signs the pipeline's positions in its consumer group; empty before the first start.

    A ledger that moves to another server stays the same one.
    """
    began = began_first(pipeline)
    return f"{format_time(began)} {settings().database_host()}" if began else ""


def check_only_ledger(pipeline: Pipeline, topic_partitions: Iterable[TopicPartition]) -> None:
    """Raise UsageError when the stream of another ledger wrote the pipeline's topics last, by its consumer group.

    A new generation takes over, until it has committed, but not one of an erasure, which a retired ledger may do while
    it declares no view. A pipeline that writes no topic may be read by several.
    """
    if not pipeline.written_topics:
        return
    generation = generations.current(pipeline.name)
    has_committed = generation and generation.positions and micro_batches.positions(pipeline.name)
    if generation and generation.number and not has_committed and not is_opened_by_erasures(pipeline.name):
        return
    own, _, _ = owner_of(pipeline.name).partition(" ")
    owners = (each.partition(" ") for each in owners_of(pipeline.name, topic_partitions))
    if others := sorted((began, host) for began, _, host in owners if host and began != own):
        began, host = others[-1]
        flags = pipeline.flags.topic if pipeline.flags and not flag_ledger.last_run(pipeline.name) else ""
        raise UsageError(
            f"the stream of another ledger, of the one at {host} that began it at {began}, has committed to the group "
            f"{group_of(pipeline.name)} and writes the same topics: {', '.join(sorted(pipeline.written_topics))}",
            remedy=f"{_APART}; only if that ledger is gone for good: ./tidemark new-generation {pipeline.name} "
            '--reason "…" takes the topics over'
            + (f", once the records are deleted, by kafka-delete-records.sh, of {flags}" if flags else ""),
            pipeline=pipeline.name,
        )


def check_not_taken_over(pipeline: Pipeline) -> None:
    """Raise the error of `check_only_ledger` where topics that this ledger reads name another one.

    For all that opens a generation on the way to something else: only `./tidemark new-generation` takes topics over.
    """
    # Nobody commits the positions of those that left, so another ledger's stay there although this one took over.
    left = topics_that_left(pipeline.name)
    check_only_ledger(pipeline, [tp for tp in micro_batches.positions(pipeline.name) if tp.topic not in left])


def check_own_topics(pipeline: Pipeline) -> None:
    """Raise UsageError when others wrote values or flags of a stream to topics before this one first wrote to them.

    The first visible record of each topic partition is looked at.
    """
    if generations.current(pipeline.name) is None:
        way = f'./tidemark new-generation {pipeline.name} --reason "…" takes the topic over'
        for view in pipeline.views:
            _check_own(pipeline, view.speed.topic, f"values that the view {view.name} has not written", _is_value, way)
    if pipeline.flags and not flag_ledger.last_run(pipeline.name):
        what = "flags that this ledger's stream has not raised, and no interval could explain"
        way = "delete the topic's records by kafka-delete-records.sh"
        _check_own(pipeline, pipeline.flags.topic, what, partial(_is_flag, pipeline), way)


def _check_own(pipeline: Pipeline, topic: str, what: str, is_such: Callable[[Message], bool], way: str) -> None:
    """Raise UsageError when the topic has such records. `way`: how to go on where nobody writes them any more."""
    every = kafka.topic_partitions_of(kafka.describe_topics([topic]).values())
    found = first_messages(dict.fromkeys(every, OFFSET_BEGINNING), kafka.TIMEOUT) if every else {}
    if any(each.error() is None and is_such(each) for each in found.values()):
        raise UsageError(
            f"the topic {topic} has {what}: another pipeline or installation writes it, or did",
            remedy=f"{_APART}; only if its writer is gone for good: {way}",
            pipeline=pipeline.name,
        )


def _is_value(message: Message) -> bool:
    return "version" in _text(message) or VERSION_HEADER in dict(message.headers() or ())


def _is_flag(pipeline: Pipeline, message: Message) -> bool:
    topic = _text(message).get("kafka_topic")
    return isinstance(topic, str) and pipeline.source.reads(topic)


def _text(message: Message) -> dict[str, object]:
    try:
        parsed = json.loads(message.value() or b"")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def check_compacted_topics(pipeline: Pipeline) -> None:
    """Raise UsageError when the compacted topic of a speed view is gone, or was created again, since it was written.

    A stream goes on with the keys that change: all others would be missing for ever, and each interval that has one
    would be unexplained.
    """
    generation = generations.current(pipeline.name)
    if generation is None:
        return
    existing = kafka.describe_topics(view.speed.topic for view in pipeline.views)
    for view in pipeline.views:
        check_compacted_topic(pipeline, view, generation, existing.get(view.speed.topic))


def check_compacted_topic(
    pipeline: Pipeline, view: AdditiveView, generation: StreamGeneration, identity: TopicIdentity | None
) -> None:
    """Raise the error of `check_compacted_topics` for one view, whose topic is this one; None for one that is gone."""
    if generation.fingerprints.get(view.name, {}).get("speed topic", view.speed.topic) != view.speed.topic:
        # Another one is declared, which the comparison of fingerprints refuses.
        return
    noted = generation.topics.get(view.name)
    is_same = identity is not None and identity.topic_id == (noted or identity.topic_id)
    if not is_same and generations.has_written(generation, view.name):
        now = f"was created again (id {noted}, now {identity.topic_id})" if identity else "is gone"
        raise _lost(pipeline, view, now)


def _lost(pipeline: Pipeline, view: AdditiveView, now: str) -> UsageError:
    return UsageError(
        f"the topic {view.speed.topic} {now}, and with it what the speed view {view.name} has written",
        remedy="let all of it be computed from the archive and written again: "
        f'./tidemark new-generation {pipeline.name} --reason "…"',
        pipeline=pipeline.name,
    )


def hidden_values(view: AdditiveView) -> list[str]:
    """Return why readers of a speed view's topic may not see all that the view has written, and what to do about it.

    An open transaction hides what lies behind it. Where the first offset is not 0, records were removed, by another
    cleanup policy: compaction leaves that offset. Raises ServiceUnreachable.
    """
    every = kafka.topic_partitions_of(kafka.describe_topics([view.speed.topic]).values())
    ends = kafka.end_offsets(every, "read_uncommitted")

    def held_back() -> dict[TopicPartition, int]:
        return {tp: at for tp, at in kafka.end_offsets(every, "read_committed").items() if at < ends[tp]}

    # What is committed lies before the stream's own transaction, which nobody must end.
    held = wait_for(held_back, lambda found: not found, seconds=_TRANSACTION_SECONDS, every=0.5)
    cut = {tp: first for tp, (first, _) in kafka.offset_bounds(every).items() if first}
    opened = (f"a transaction is open at offset {at} of {tp}: {kafka.END_TRANSACTION}" for tp, at in held.items())
    way = "if values were among them, ./tidemark new-generation writes all anew"
    return [*opened, *(f"the records of {tp} before offset {at} were removed: {way}" for tp, at in cut.items())]


def note_compacted_topics(pipeline: Pipeline, generation: StreamGeneration) -> StreamGeneration:
    """Note in the generation which topics its speed views write (`check_compacted_topics`), and return it with them."""
    existing = kafka.describe_topics(view.speed.topic for view in pipeline.views)
    ids = {view.name: existing[view.speed.topic].topic_id for view in pipeline.views if view.speed.topic in existing}
    if new := {view: topic_id for view, topic_id in ids.items() if generation.topics.get(view) != topic_id}:
        generations.note_topics(generation, new)
    return replace(generation, topics={**generation.topics, **ids})


def create_written_topics(pipeline: Pipeline) -> None:
    """Create the missing topics among those that the pipeline's stream writes.

    Raises ServiceUnreachable, and UsageError for an output with invalid options or an unknown connection, and for
    flags whose topic is compacted.
    """
    for view in pipeline.views:
        kafka.create_topic(view.speed.topic, view.speed.topic_partitions, compacted=True)
        for sink in view.sinks:
            if isinstance(sink, KafkaMessages):
                for topic in sink.topics:
                    kafka.create_topic(topic, sink.topic_partitions)
    if pipeline.flags:
        is_new = kafka.create_topic(pipeline.flags.topic, pipeline.flags.topic_partitions)
        if not is_new and kafka.is_compacted(pipeline.flags.topic):
            raise _compacted(pipeline.flags.topic, pipeline)
    for output in pipeline.outputs:
        if isinstance(output.to, KafkaTopic):
            _check_options(pipeline, output.name, output.to)
            for topic in output.to.topics:
                kafka.create_topic(topic, output.to.topic_partitions)
        else:
            database_of(output.to.connection)


def _compacted(topic: str, pipeline: Pipeline) -> UsageError:
    """Return the error of flags whose topic keeps one of each key: a record has one for each row and version."""
    return UsageError(
        f"topic {topic} is compacted, and would lose flags of records that have several",
        remedy=f"kafka-configs.sh --bootstrap-server {settings().kafka_address()} --alter --entity-type topics "
        f"--entity-name {topic} --add-config cleanup.policy=delete; or choose another topic",
        pipeline=pipeline.name,
    )


def _check_options(pipeline: Pipeline, output: str, to: KafkaTopic) -> None:
    """Raise UsageError when Kafka's client does not take the value of an output's option."""
    for name, value in to.options.items():
        try:
            kafka.producer(**{PRODUCER_OPTIONS[name]: value})
        except KafkaException as error:
            raise UsageError(
                f"the output {output} sets {name} to {value!r}, which Kafka's client does not take: "
                f"{error.args[0].str()}",
                remedy="correct its options",
                pipeline=pipeline.name,
            ) from None
