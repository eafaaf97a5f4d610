"""A speed view's messages for plain topics: one declared topic, or the one that each row names."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.errors import TidemarkError
from include.kafka.fenced_producer import FencedProducer
from include.pipelines.spec import AdditiveView, KafkaMessages, Pipeline
from include.pipelines.spec.views import VERSION_HEADER
from spark_jobs.decoding.records import transform
from spark_jobs.spark.frames import in_memory
from spark_jobs.spark.kafka_source import messages_of
from spark_jobs.views.values import key_columns, value_json


@dataclass(frozen=True)
class KafkaMessagesTarget:
    """Writes the changed keys of a micro-batch as messages.

    At least once: a replayed micro-batch writes equal messages again, with the same `version` in the header. A base
    that is made again may have other ones. Readers of committed records do not see messages of a driver that lost its
    lease.
    """

    pipeline: Pipeline
    view: AdditiveView
    sink: KafkaMessages
    producer: FencedProducer

    def write(self, values: DataFrame, version: int) -> None:
        """Write the values. Raises TidemarkError for an undeclared topic, or a null key for a compacted one."""
        with in_memory(self._messages(values, version)) as messages:
            self._check(messages)
            self.producer.write(messages_of(messages), {VERSION_HEADER: str(version).encode()})

    def replace(self, values: DataFrame, version: int) -> None:
        """Write all values of the view: readers of a topic that only grows see the newer version."""
        self.write(values, version)

    def _check(self, messages: DataFrame) -> None:
        topics = [row[0] for row in messages.select("topic").distinct().collect()]
        if unknown := sorted(str(topic) for topic in topics if topic not in self.sink.topics):
            raise TidemarkError(
                f"a row of {self.view.name} names the topic {unknown[0][:100]!r}, which its sink does not declare",
                remedy=f"declare it, or correct the transform {self.sink.messages}",
                pipeline=self.pipeline.name,
            )
        nameless = {row[0] for row in messages.where("key IS NULL").select("topic").distinct().collect()}
        if refusing := sorted(topic for topic in nameless if "compact" in kafka.cleanup_policy(topic)):
            raise TidemarkError(
                f"a message of {self.view.name} for the compacted topic {refusing[0]} has no key",
                remedy="give it a key, or alter the topic's cleanup.policy",
                pipeline=self.pipeline.name,
            )

    def _messages(self, values: DataFrame, version: int) -> DataFrame:
        """Return the messages. Columns: key, value, topic: the sink's own, else the one that a row names."""
        if self.sink.messages:
            rows = values.select(*key_columns(self.view, F.col("key")), *self.view.measures)
            messages: DataFrame = transform(self.pipeline, self.sink.messages)(rows)
        else:
            messages = values.select("key", value_json(self.view, version).alias("value"))
        if self.sink.topic:
            messages = messages.withColumn("topic", F.lit(self.sink.topic))
        named = messages.withColumn("topic", F.concat(F.col("topic").cast("string"), F.lit(self.sink.topic_suffix)))
        return named.select(*(F.col(name).cast("string") for name in ("key", "value", "topic")))
