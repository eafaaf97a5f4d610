"""The topics that a pipeline's stream writes: made when missing, unless they have to hold what was written before."""

from __future__ import annotations

from confluent_kafka import KafkaException

from include import kafka
from include.errors import UsageError
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration
from include.outputs.connection import database_of
from include.pipelines.spec import PRODUCER_OPTIONS, AdditiveView, KafkaMessages, KafkaTopic, Pipeline
from include.settings import settings


def check_compacted_topics(pipeline: Pipeline) -> None:
    """Raise UsageError when the compacted topic of a speed view is gone, or was created again, since it was written.

    A stream goes on with the keys that change: all others would be missing for ever.
    """
    generation = generations.current(pipeline.name)
    if generation is None:
        return
    existing = kafka.describe_topics(view.speed.topic for view in pipeline.views)
    for view in pipeline.views:
        if generation.fingerprints.get(view.name, {}).get("speed topic", view.speed.topic) != view.speed.topic:
            # Another one is declared, which the comparison of fingerprints refuses.
            continue
        identity, noted = existing.get(view.speed.topic), generation.topics.get(view.name)
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


def note_compacted_topics(pipeline: Pipeline, generation: StreamGeneration) -> None:
    """Note in the generation which topics its speed views write (`check_compacted_topics`)."""
    existing = kafka.describe_topics(view.speed.topic for view in pipeline.views)
    ids = {view.name: existing[view.speed.topic].topic_id for view in pipeline.views if view.speed.topic in existing}
    if new := {view: topic_id for view, topic_id in ids.items() if generation.topics.get(view) != topic_id}:
        generations.note_topics(generation, new)


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
