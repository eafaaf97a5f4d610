"""Starts, watches and stops the queries of a stream of any source."""

from __future__ import annotations

import logging
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from include import lake
from include.errors import TidemarkError
from include.lake import object_store
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.pipelines.spec import Pipeline
from include.streams.checkpoints import checkpoint_uri
from spark_jobs.archive import delta
from spark_jobs.spark.failures import SPARK_FAILURES, end_of_query, root_cause, translate, unresolved_id
from spark_jobs.spark.log import log_of
from spark_jobs.streaming.summed_lines import SummedLines

_STOP_SECONDS = 10
"""How long a query may take to stop in the middle of a micro-batch."""

_STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"

Sink = Callable[[DataFrame, int], None]
"""Takes a micro-batch and its number."""

SinkOf = Callable[[str, str], Sink]
"""Takes a query's id and its checkpoint; returns the sink of its next micro-batch."""


class Stop:
    """A request to stop, made by SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


class StreamQueries(ABC):
    """The running queries of a pipeline; the first one is the archive query."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        lease: writers.Lease,
        generation: StreamGeneration,
        *,
        until_caught_up: bool,
    ) -> None:
        self.committed = 0
        self._spark = spark
        self._pipeline = pipeline
        self._lease = lease
        self._generation = generation
        self._until_caught_up = until_caught_up
        self._commits = SummedLines(self._log(ARCHIVE), "%s records, %s quarantined, %.1f s")
        self._errors: list[TidemarkError] = []
        self._thrown: dict[str, Exception] = {}
        """The Spark errors of the queries' batch functions, by the query's name."""
        self._queries: list[StreamingQuery] = []
        self._left: set[str] = set()
        """The names of queries that did not stop in time."""
        if object_store.is_bucket_uri(lake.root()):
            for key, value in object_store.checkpoint_properties().items():
                spark.conf.set(key, value)
        if pipeline.archive.delta:
            delta.check_store(spark, pipeline)
            delta.check_table(spark, pipeline)

    def _log(self, query: str) -> logging.LoggerAdapter[logging.Logger]:
        return log_of(self._pipeline.name, query)

    @property
    def is_one_left(self) -> bool:
        """Whether a query that did not stop in time is left to the driver's end."""
        return bool(self._left)

    @abstractmethod
    def running(self) -> bool:
        """Return whether any query still runs. Raises what a query failed with."""

    def wait(self, seconds: int) -> None:
        """Wait for some seconds, or until a query ends; `running` raises its error."""
        with suppress(StreamingQueryException):
            self._spark.streams.awaitAnyTermination(seconds)
        self._spark.streams.resetTerminated()
        self._commits.tell_due()

    def stop_at_batch_boundary(self, patience: float = 60.0) -> None:
        """Let each query finish the micro-batch it is in, then stop it.

        After `patience`, s, for all queries together, stop those left as they are: such a micro-batch is not committed.
        Raises, once all are stopped, what a sink or a query has failed with meanwhile. What the next start gets over by
        itself is no failure: a record that makes a view throw, if the stream withholds it then, a schema that is not
        resolved yet. So of such a view, only a failure that has a meaning of its own is one, such as a full disk.
        """
        deadline, failed = time.monotonic() + patience, list[Exception]()
        for query in self._queries:
            begun = query.lastProgress
            while query.isActive and time.monotonic() < deadline:
                status = query.status
                idle = not status["isTriggerActive"] or status["message"] == "Waiting for data to arrive"
                latest = query.lastProgress
                if idle or (latest and begun != latest):
                    break
                with suppress(StreamingQueryException):
                    query.awaitTermination(1)
            # Before it is stopped: that may make it fail.
            thrown = self._thrown.get(query.name.removeprefix(f"{self._pipeline.name}."))
            if error := self._final_failure(query) or (thrown if thrown and translate(thrown) else None):
                failed.append(error)
            self._stop(query)
        self._commits.tell()
        if lasting := [*self._errors, *(each for each in failed if unresolved_id(each) is None)]:
            raise lasting[0]

    def stop_now(self) -> None:
        """Stop all queries, if need be in the middle of micro-batches, which then are not committed."""
        # Without its JVM no query runs any more, and the error that came before is the one to tell.
        with suppress(OSError, Py4JError):
            for query in self._queries:
                if query.isActive:
                    self._stop(query)
        self._commits.tell()

    def _stop(self, query: StreamingQuery) -> None:
        """Stop a query as it is. One whose batch function does not return in time is left to the driver's end.

        Spark cannot interrupt Python, and by default waits for it without a limit. It may still commit until the lease
        ends.
        """
        self._spark.conf.set(_STOP_TIMEOUT, f"{_STOP_SECONDS}s")
        try:
            query.stop()
            # That of flags is stopped a second time.
            self._left.discard(query.name)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
                raise
            self._leave(query.name)
        finally:
            self._spark.conf.unset(_STOP_TIMEOUT)

    def _leave(self, name: str, why: str = "waits in its micro-batch") -> None:
        self._left.add(name)
        log_of(self._pipeline.name).warning(
            "%s %s, and does not stop within %s s: it ends with the driver", name, why, _STOP_SECONDS
        )

    def _run_sink(self, query: str, sink_of: SinkOf, batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            sink_of(str(query_id), checkpoint_uri(self._generation, query))(batch, batch_id)
        except TidemarkError as error:
            # Spark hands back only the text of an exception; the exit code needs the error itself.
            self._errors.append(error)
            raise
        except (*SPARK_FAILURES, OSError) as error:
            # As above: only the number of a system's error tells that a disk is full. Spark also searches the text for
            # Py4J's phrases, by a regular expression that overflows the stack on long texts, and the query would end
            # without an error. So it gets one line.
            self._thrown[query] = error
            raise BatchFunctionFailed(root_cause(error)) from None

    def _failure(self, name: str, query: StreamingQuery) -> Exception | None:
        """Return the error that ended a query, with its original type; None while it runs or was stopped."""
        failed = end_of_query(query)
        return failed and self._thrown.get(name, failed)

    def _final_failure(self, query: StreamingQuery) -> Exception | None:
        """Return the error that ended a query, unless the next start may withhold the record that it comes from."""
        return self._failure(ARCHIVE, query) if query is self._queries[0] else None

    def _start(self, writer: DataStreamWriter, query: str, sink_of: SinkOf) -> StreamingQuery:
        trigger = {"availableNow": True} if self._until_caught_up else {"processingTime": "1 second"}
        self._thrown.pop(query, None)
        return (
            writer.queryName(f"{self._pipeline.name}.{query}")
            .option("checkpointLocation", checkpoint_uri(self._generation, query))
            .trigger(**trigger)
            .foreachBatch(partial(self._run_sink, query, sink_of))
            .start()
        )


class BatchFunctionFailed(Exception):
    """The error of a sink as one line, Spark's or the system's: Spark passes on only the text."""
