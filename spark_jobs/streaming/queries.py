"""Starts, watches and stops the queries of a stream of any source, under its lease."""

from __future__ import annotations

import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from include import lake
from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.lake import object_store
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.connection import LOCK_SECONDS, SILENT_SECONDS, check_answers, check_version, does_not_answer
from include.ledger.database import engine
from include.ledger.patience import SHARE, patient
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.streams.checkpoints import checkpoint_uri
from spark_jobs.archive import delta
from spark_jobs.spark.failures import SPARK_FAILURES, end_of_query, root_cause, unresolved_id
from spark_jobs.spark.log import log_of
from spark_jobs.streaming.summed_lines import SummedLines

_ANSWER_SECONDS = 5
"""How long PostgreSQL may take to accept a connection while a renewal waits for an answer."""

_END_SECONDS = 15
"""How long a renewal may take when the stream ends."""

_NOT_RELEASED = "the lease was not released, and ends by itself"

_STOP_SECONDS = 10
"""How long a query may take to stop in the middle of a micro-batch."""


class Stop:
    """A request to stop, made by SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


class Heartbeat(threading.Thread):
    """Renews the lease from the moment it is held, also while Spark starts.

    A ledger that is unreachable, hangs, or refuses writes, is tolerated as long as the lease lasts.
    """

    def __init__(self, lease: writers.Lease) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._application_id = self._ui_address = ""
        self._lease = lease
        self._ended = threading.Event()
        self._stop_requested = False
        self._error: TidemarkError | None = None
        self._renewed = self._answered = time.monotonic()

    def note_application(self, spark: SparkSession) -> None:
        """Note the Spark application's id and the address of its UI with the next renewal."""
        self._application_id = spark.sparkContext.applicationId or ""
        self._ui_address = spark.sparkContext.uiWebUrl or ""

    def run(self) -> None:
        """Renew until ended, or until the lease is lost."""
        every = min(2.0, settings().lease_seconds / 5)
        self._renewed = time.monotonic()
        while not self._ended.wait(every):
            try:
                self._stop_requested = writers.renew(self._lease, self._application_id, self._ui_address)
                self._renewed = time.monotonic()
            except Exception as error:  # the thread's edge: if it died, the lease would expire unnoticed
                is_final = isinstance(error, TidemarkError) and not isinstance(error, ServiceUnreachable)
                if is_final or time.monotonic() - self._renewed > settings().lease_seconds:
                    self._error = _named(error)
                    return

    def stop_requested(self) -> bool:
        """Return whether a stop was requested. Raises TidemarkError, mostly AnotherWriter, when the lease is lost."""
        if self._error is None and (hangs := self._hangs()):
            self._error = hangs
        if self._error is not None:
            raise self._error
        return self._stop_requested

    def _hangs(self) -> TidemarkError | None:
        """Return the error of a renewal that does not return because PostgreSQL hangs: nothing else would end it.

        It then takes no other connection either. A renewal also waits for a commit of this driver that takes longer
        than the lease, but not for longer than for any lock.
        """
        now, lease = time.monotonic(), settings().lease_seconds
        if now - self._renewed > max(lease, LOCK_SECONDS + SILENT_SECONDS):
            return does_not_answer(f"a renewal of the lease has no answer after {now - self._renewed:.0f} s")
        if now - max(self._renewed, self._answered) > lease:
            try:
                check_answers(_ANSWER_SECONDS)
            except ServiceUnreachable as error:
                return error
            self._answered = time.monotonic()
        return None

    def end(self) -> bool:
        """End the renewals; return False when one of them still waits for the ledger."""
        self._ended.set()
        self.join(timeout=_END_SECONDS)
        return not self.is_alive()


def _named(error: Exception) -> TidemarkError:
    if isinstance(error, TidemarkError):
        return error
    return TidemarkError(
        f"the lease could not be renewed: {type(error).__name__}: {one_line(str(error))}",
        remedy="./tidemark status; repair PostgreSQL, then start the stream again",
    )


@contextmanager
def leased(pipeline: str) -> Iterator[tuple[writers.Lease, Heartbeat]]:
    """Hold the pipeline's lease, renewed by the heartbeat, and be patient with the ledger.

    Raises AnotherWriter, and UsageError when newer code has migrated the ledger.
    """
    check_version()
    lease = writers.acquire(pipeline)
    heartbeat = Heartbeat(lease)
    heartbeat.start()
    with patient(SHARE * settings().lease_seconds):
        try:
            yield lease, heartbeat
        finally:
            if heartbeat.end():
                _release(lease)
            else:
                # The same connections would let the next step wait as long.
                engine().dispose()
                log_of(pipeline).warning("%s: a renewal of it has no answer yet", _NOT_RELEASED)


def _release(lease: writers.Lease) -> None:
    """Release the lease; one that the ledger cannot take back ends by itself, and hides no error before it."""
    try:
        writers.release(lease)
    except ServiceUnreachable as error:
        log_of(lease.pipeline).warning("%s: %s", _NOT_RELEASED, error)


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
        if object_store.is_bucket_uri(lake.root()):
            for key, value in object_store.checkpoint_properties().items():
                spark.conf.set(key, value)
        if pipeline.archive.delta:
            delta.check_store(spark, pipeline)
            delta.check_table(spark, pipeline)

    def _log(self, query: str) -> logging.LoggerAdapter[logging.Logger]:
        return log_of(self._pipeline.name, query)

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
        resolved yet.
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
            if error := self._final_failure(query):
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
        is released.
        """
        self._spark.conf.set("spark.sql.streaming.stopTimeout", f"{_STOP_SECONDS}s")
        try:
            query.stop()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
                raise
            log_of(self._pipeline.name).warning(
                "%s waits in its micro-batch, and does not stop within %s s: it ends with the driver",
                query.name,
                _STOP_SECONDS,
            )

    def _sinks_of(self, query: str, batch: DataFrame, run: Callable[[str, str], None]) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            run(str(query_id), checkpoint_uri(self._generation, query))
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

    def _start(self, writer: DataStreamWriter, query: str, run: Callable[[DataFrame, int], None]) -> StreamingQuery:
        trigger = {"availableNow": True} if self._until_caught_up else {"processingTime": "1 second"}
        self._thrown.pop(query, None)
        return (
            writer.queryName(f"{self._pipeline.name}.{query}")
            .option("checkpointLocation", checkpoint_uri(self._generation, query))
            .trigger(**trigger)
            .foreachBatch(run)
            .start()
        )


class BatchFunctionFailed(Exception):
    """The error of a sink as one line, Spark's or the system's: Spark passes on only the text."""
