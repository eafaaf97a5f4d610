"""A pipeline's views as tables in memory that follow its topics, and its archive up to the last commit.

They only read: nothing here holds the lease, writes to the ledger, or leaves a checkpoint after the session.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.pipelines.spec import EVENT_TIMES, AdditiveView, Pipeline
from spark_jobs.archive.reader import read_archived_by_event_time
from spark_jobs.decoding.records import archive_rows, decode, load_references
from spark_jobs.spark.kafka_source import read_stream
from spark_jobs.views.aggregate import aggregate_view


class MemoryTables:
    """Temporary tables of a session: each view under its own name, the archive as `<pipeline>_live`."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._queries: list[StreamingQuery] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return (*(view.name for view in self._pipeline.views), self._archive)

    @property
    def _archive(self) -> str:
        return f"{self._pipeline.table}_live"

    def start(self) -> None:
        """Start a query per view from the topics' beginning, into a table that holds all of its keys."""
        self._queries = [self._start(view) for view in self._pipeline.views]

    def refresh(self) -> None:
        """Bring the tables to what Kafka and the ledger hold now."""
        for query in self._queries:
            query.processAllAvailable()
        rows = read_archived_by_event_time(self._spark, self._pipeline, *EVENT_TIMES)
        rows.drop("_closed_topic_id").createOrReplaceTempView(self._archive)

    def _start(self, view: AdditiveView) -> StreamingQuery:
        rows = archive_rows(self._pipeline, decode(self._pipeline, read_stream(self._spark, self._pipeline.source, {})))
        aggregates = aggregate_view(self._pipeline, view, rows, load_references(self._spark, self._pipeline))
        return (
            aggregates.writeStream.format("memory")
            .queryName(view.name)
            .outputMode("complete")
            .option("forceDeleteTempCheckpointLocation", "true")
            .start()
        )
