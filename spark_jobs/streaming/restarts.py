"""Decides when a failed query may start again. Its micro-batch was not committed, and three kinds of failure pass:

A record makes a query throw. The archive query searches for it (`spark_jobs/sinks/landing.py`) and commits it as
diverted; a query beside it decodes the same stream, and starts again without the diverted records.

A query beside the archive query fails for a passing reason (a worker without memory): the archive query gets past the
records with nothing diverted. The query starts again, once per position: a second failure there is its own.

A micro-batch has a schema id that was not known when the query was planned. Its ids are resolved, and the query,
planned anew, runs that micro-batch again. Of a query in real time, only the id at which it ended is resolved. While the
registry is unreachable it waits: no record goes to quarantine for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, SparkSession

from include import kafka
from include.errors import OffsetsLost, ServiceUnreachable, TidemarkError
from include.lake.checkpoints import newest_commit, newest_plan
from include.ledger.archive import micro_batches
from include.ledger.archive.positions import topics_that_left
from include.ledger.quarantine import diverted
from include.ledger.streams.generations import StreamGeneration
from include.offsets import Coordinates, TopicPartition
from include.pipelines.spec import Avro, Pipeline
from include.schemas.writer_schemas import UNKNOWN_SCHEMA, writer_schemas
from include.streams.start import check_retention
from spark_jobs.decoding.decoders import prepare
from spark_jobs.decoding.poison import withhold
from spark_jobs.spark.checkpoint import read_batch
from spark_jobs.spark.failures import translate
from spark_jobs.spark.kafka_source import read_ranges
from spark_jobs.spark.log import log_of

PATIENCE = 60.0
"""How long a query waits, s: for the registry, or for an archive query that neither searches nor makes progress."""

_NAMED = 10
"""How many unknown schema ids a line of the log names."""


@dataclass
class _Wait:
    """A failed speed query that waits."""

    ends: Mapping[TopicPartition, int]
    """Where the topics ended when it failed: the failing record lies below."""
    since: float
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How far the archive query had read at the last look."""

    def archive_moves(self, reached: Mapping[TopicPartition, int]) -> bool:
        """Return whether the archive query has come nearer to the failing record, as far as can be known."""
        moved, self.reached = reached != self.reached, reached
        return moved and not self.is_passed(reached)

    def is_passed(self, reached: Mapping[TopicPartition, int]) -> bool:
        """Return whether the archive query has passed the failing record."""
        return all(reached.get(tp, 0) >= end for tp, end in self.ends.items())


class PoisonRestarts:
    """Restarts of queries beside the archive query; remembers the records that each withheld at its start."""

    def __init__(self, pipeline: str, searching: threading.Event) -> None:
        self._pipeline = pipeline
        self._searching = searching
        self._left_alone: dict[str, list[Coordinates]] = {}
        self._waits: dict[str, _Wait] = {}
        self._started_again_at: dict[str, Mapping[TopicPartition, int]] = {}

    def withheld(self, view: str) -> Column | None:
        """Return the column `withheld` for a query of the view that starts now: diverted records still ahead of it."""
        self._left_alone[view] = self._ahead(view)
        self._waits.pop(view, None)
        return withhold(dict.fromkeys(self._left_alone[view], "diverted"))

    def may_start(self, view: str, failed: Exception, *, archive_runs: bool) -> bool:
        """Return whether to start the view's failed query again; False means wait.

        Raises the query's error when a service failed, or when nothing is diverted in time.
        """
        if translate(failed) is not None:
            raise failed
        if set(self._ahead(view)) - set(self._left_alone.get(view, [])):
            return True
        now = time.monotonic()
        wait = self._waits.get(view)
        if wait is None:
            left = topics_that_left(self._pipeline)
            bounds = kafka.offset_bounds(tp for tp in micro_batches.positions(self._pipeline) if tp.topic not in left)
            wait = self._waits[view] = _Wait({tp: end for tp, (_, end) in bounds.items()}, now)
        reached = micro_batches.positions(self._pipeline)
        if wait.archive_moves(reached) or self._searching.is_set():
            wait.since = now
        if wait.is_passed(reached) and self._is_first_at(micro_batches.positions(self._pipeline, view), view):
            return True
        if not archive_runs or now - wait.since > PATIENCE:
            raise failed
        return False

    def _is_first_at(self, position: Mapping[TopicPartition, int], view: str) -> bool:
        before = self._started_again_at.get(view)
        self._started_again_at[view] = position
        return before != position

    def _ahead(self, view: str) -> list[Coordinates]:
        """Return the diverted records from the view's last micro-batch on: Spark may not have committed that."""
        positions = micro_batches.positions(self._pipeline, view)
        if last := micro_batches.last_batch(self._pipeline, view):
            ranges = micro_batches.committed_ranges(last.query_id, last.batch_id)
            positions |= {each.topic_partition: each.from_offset for each in ranges}
        return diverted(self._pipeline, positions, micro_batches.stored_topics(self._pipeline))


class SchemaRestarts:
    """Restarts of queries that met an unknown schema id; remembers since when each has waited."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting: dict[str, float] = {}

    def may_start(self, spark: SparkSession, query: str, checkpoint: str, schema_id: int) -> bool:
        """Return whether the id at which the query ended, and all of its micro-batch, are resolved; False means wait.

        Raises ServiceUnreachable when the registry is unreachable for longer than `PATIENCE`.
        """
        decoder = self._pipeline.decoder
        assert isinstance(decoder, Avro)
        known_as_unknown = writer_schemas().unknown()
        try:
            # A query in real time writes a micro-batch to the log when it ends, so that here the log lacks it.
            if (failed := newest_plan(checkpoint)) > newest_commit(checkpoint):
                prepare(decoder, read_ranges(spark, read_batch(checkpoint, failed).ranges))
            writer_schemas().resolve([schema_id], decoder.subject)
        except ServiceUnreachable as error:
            now = time.monotonic()
            if query not in self._waiting:
                log_of(self._pipeline.name, query).warning("waits: %s", error)
            if now - self._waiting.setdefault(query, now) > PATIENCE:
                raise
            return False
        self._waiting.pop(query, None)
        if unknown := sorted(writer_schemas().unknown() - known_as_unknown):
            more = len(unknown[_NAMED:])
            log_of(self._pipeline.name, query).warning(
                "the registry has no schema with id %s, and this driver does not ask for it again%s: records with it "
                "go to quarantine. Once it has: start the stream again, then ./tidemark quarantine replay %s "
                "--reason %s",
                ", ".join(map(str, unknown[:_NAMED])) + (f" and {more} more" if more else ""),
                ", nor for any other after so many" if writer_schemas().asks_no_more() else "",
                self._pipeline.name,
                UNKNOWN_SCHEMA,
            )
        return True


def with_losses(pipeline: Pipeline, generation: StreamGeneration, error: Exception) -> Exception:
    """Return, in place of Spark's error about lost offsets, one with the loss per topic partition and the remedy."""
    if not isinstance(translate(error), OffsetsLost):
        return error
    try:
        check_retention(pipeline, generation)
    except TidemarkError as exact:
        return exact
    # As after a log was truncated under a running stream, and then put back.
    return OffsetsLost(
        "a micro-batch was planned for other offsets than Kafka holds, although nothing is missing from the committed "
        "positions on",
        remedy="begin with new checkpoints, where the archive ends: "
        f'./tidemark new-generation {pipeline.name} --reason "…"',
        pipeline=pipeline.name,
    )
