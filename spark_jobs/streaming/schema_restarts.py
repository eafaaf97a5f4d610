"""When a query that met unknown schema ids may start again: once the registry has said what they are.

A streaming query is planned with the writer schemas that are known then. A micro-batch with another id throws
before anything of it is committed; its ids are resolved here, and the query, planned anew, runs that micro-batch
again. While the registry is away the query waits: nothing goes to quarantine for it.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession

from include import lake
from include.errors import ServiceUnreachable
from include.pipelines.spec import Pipeline
from spark_jobs.decoding.decoders import prepare
from spark_jobs.spark.checkpoint import read_batch
from spark_jobs.spark.kafka_source import read_ranges

PATIENCE = 60.0
"""How long a query waits for the registry, s, before the stream ends with the error of it."""


class SchemaRestarts:
    """Remembers since when each query of a pipeline waits."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting: dict[str, float] = {}

    def may_start(self, spark: SparkSession, query: str, checkpoint: str) -> bool:
        """Whether all schema ids of the query's last planned micro-batch are resolved now; False: wait.

        Raises ServiceUnreachable when the registry is away for longer than `PATIENCE`.
        """
        planned = read_batch(checkpoint, _last_batch(checkpoint))
        try:
            prepare(self._pipeline.decoder, read_ranges(spark, planned.ranges))
        except ServiceUnreachable as error:
            now = time.monotonic()
            if query not in self._waiting:
                print(f"{self._pipeline.name}: {query} waits: {error}", file=sys.stderr, flush=True)
            if now - self._waiting.setdefault(query, now) > PATIENCE:
                raise
            return False
        self._waiting.pop(query, None)
        return True


def _last_batch(checkpoint: str) -> int:
    """The newest micro-batch in the write-ahead log: the one that failed."""
    return max(int(file.name) for file in lake.list_files(f"{checkpoint}/offsets") if file.name.isdigit())
