"""A speed view's compacted topic: the last value of each key counts.

Key: JSON object of the view's key columns, sorted. Value: JSON object of its measures and `version`, the number of the
micro-batch, growing over generations too. A replayed batch writes the same keys and values again. The producer fences
off that of an older driver (`include/kafka/fenced_producer.py`), so readers must read committed records only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.kafka.fenced_producer import FencedProducer
from include.pipelines.spec import AdditiveView
from include.pipelines.spec.views import VERSION_HEADER
from spark_jobs.spark.kafka_source import held_messages_of, messages_of
from spark_jobs.views.speed_topic import key_places
from spark_jobs.views.values import value_json


@dataclass(frozen=True)
class CompactedTopicTarget:
    """Writes the last value of each changed key."""

    view: AdditiveView
    producer: FencedProducer

    def write(self, values: DataFrame, version: int) -> None:
        """Write the values. Raises AnotherWriter when a newer driver writes the topic."""
        # In one task: a micro-batch changes few keys.
        changed = values.select("key", value_json(self.view, version).alias("value")).coalesce(1)
        self.producer.write(held_messages_of(self._addressed(changed)))

    def replace(self, values: DataFrame, version: int) -> None:
        """Write all values of the view, and a deletion for each key that it wrote and that is not among them.

        A deletion goes to each topic partition that holds the key: where topic partitions were added, compaction would
        remove the one of the key's new topic partition, and the value in the older one would be its last again.
        """
        messages = values.select("key", value_json(self.view, version).alias("value"))
        # The first generation takes no topic over: later versions are another installation's.
        last = version if version < 0 else None
        gone = key_places(values.sparkSession, self.view, last).join(values, "key", "left_anti")
        deletions = gone.select("key", "partition", F.lit(None).cast("string").alias("value"))
        self._send(messages)
        self._send(deletions, {VERSION_HEADER: str(version).encode()})

    def _send(self, messages: DataFrame, headers: Mapping[str, bytes] | None = None) -> None:
        self.producer.write(messages_of(self._addressed(messages)), headers)

    def _addressed(self, messages: DataFrame) -> DataFrame:
        return messages.withColumn("topic", F.lit(self.view.speed.topic))
