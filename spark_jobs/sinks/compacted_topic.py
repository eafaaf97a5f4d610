"""A speed view's sink: the changed aggregates of a micro-batch to a compacted topic.

Key: JSON object of the view's key columns, sorted. Value: JSON object of its measures and `version`,
the number of the micro-batch, growing over generations too. A replayed batch writes the same keys and
values again. In a generation that began with a base, base and state are added up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.code_version import decoder_version
from include.crash_points import crash_point
from include.ledger import micro_batches, writers
from include.ledger.generations import StreamGeneration
from include.ledger.micro_batches import BatchCommit
from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.kafka_source import write_topic
from spark_jobs.write_ahead_log import read_batch

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss'Z'", "ignoreNullFields": "false"}


def key_json(view: AdditiveView) -> Column:
    """The key of a row of the view as JSON: keys sorted, also inside the window."""
    columns = [
        F.struct(F.col(name)["end"].alias("end"), F.col(name)["start"].alias("start")).alias(name)
        if name == view.window
        else F.col(name)
        for name in sorted(view.key)
    ]
    return F.to_json(F.struct(*columns), _TIMES)


def value_json(view: AdditiveView, version: int) -> Column:
    """The measures of a row of the view as JSON, keys sorted."""
    measures: list[Column] = [F.col(name) for name in view.measures]
    named = sorted([*zip(view.measures, measures, strict=True), ("version", F.lit(version).alias("version"))])
    return F.to_json(F.struct(*(column for _, column in named)), _TIMES)


@dataclass
class CompactedTopicSink:
    """Emits a speed view's changed keys, then commits the micro-batch's position in the ledger."""

    pipeline: Pipeline
    view: AdditiveView
    lease: writers.Lease
    generation: StreamGeneration
    base: DataFrame | None
    """Columns: key, the measures (`spark_jobs/view_base.py`)."""
    query_id: str
    checkpoint: str

    def emit(self, aggregates: DataFrame, batch_id: int) -> None:
        """Emit one micro-batch. The topic gets it before the ledger: a crash between repeats equal values."""
        started = time.monotonic()
        writers.renew(self.lease)
        version = self.generation.version(batch_id)
        if micro_batches.is_committed(self.query_id, version):
            # Emitted before; but Spark, which lost its own note of that, wants the batch's state written.
            aggregates.write.format("noop").mode("overwrite").save()
            return
        planned = read_batch(self.checkpoint, batch_id)
        messages = (
            self._with_base(aggregates.select(key_json(self.view).alias("key"), *self.view.measures))
            .select("key", value_json(self.view, version).alias("value"))
            .persist()
        )
        emitted = messages.count()
        if emitted:
            write_topic(messages, self.view.speed.topic)
        messages.unpersist()
        crash_point("speed_emitted")
        micro_batches.commit(
            self.lease,
            BatchCommit(
                pipeline=self.pipeline.name,
                query=self.view.name,
                query_id=self.query_id,
                batch_id=version,
                ranges=planned.ranges,
                topics=kafka.describe_topics(r.topic_partition.topic for r in planned.ranges),
                rows=emitted,
                seconds=time.monotonic() - started,
                watermark=planned.watermark,
                decoder_version=decoder_version(self.pipeline.name),
            ),
        )
        crash_point("speed_committed")

    def _with_base(self, state: DataFrame) -> DataFrame:
        if self.base is None:
            return state
        below = self.base.select("key", *(F.col(name).alias(f"base_{name}") for name in self.view.measures))
        added = [
            (F.col(name) + F.coalesce(f"base_{name}", F.lit(0).cast(state.schema[name].dataType))).alias(name)
            for name in self.view.measures
        ]
        return state.join(below, "key", "left").select("key", *added)
