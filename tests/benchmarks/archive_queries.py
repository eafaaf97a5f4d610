"""A pipeline's queries against bare PySpark, in turns in one session: the same topic, the same rows.

Bare: `readStream` with the same options, plain `from_json` (or `from_avro` with the schema that the record's id names),
`explode`, the built-in Parquet file sink partitioned by date. It neither quarantines nor counts nor commits anything;
that is the work the ratio charges us for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from include import driver_folders, kafka, lake
from include.ledger import generations, writers
from include.ledger.database import session
from include.ledger.micro_batches import BatchCommit
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Avro, Pipeline
from include.sources import describe_source, source_topic_partitions
from include.spark_submit import submission
from include.stream_start import create_written_topics
from include.writer_schemas import writer_schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def resubmit(argv: list[str]) -> int:
    """Run this file under spark-submit with the configuration that streams get."""
    job = submission("stream", *argv, name="bench archive")
    command = [Path(__file__).as_posix() if part == job.application else part for part in job.command()]
    return subprocess.run(command, env={**os.environ, **job.env, "TIDEMARK_BENCH": "1"}, check=False).returncode


@dataclass
class Cost:
    """What a run took: seconds by the clock, and of CPU time in the driver's two processes."""

    seconds: float
    cpu_seconds: float


def cost_of(query: DataStreamWriter) -> Cost:
    """Run a query to its end and measure: Python's process and its JVM, which runs all of Spark here."""
    processes = [psutil.Process(), psutil.Process().parent()]

    def used() -> float:
        times = [process.cpu_times() for process in processes if process is not None]
        return sum(each.user + each.system for each in times)

    begun, before = time.monotonic(), used()
    query.start().awaitTermination()
    return Cost(time.monotonic() - begun, used() - before)


class Queries:
    """The queries of a pipeline over what its topics hold, each ready to be run to their end.

    A stream's frames are built once, when it starts, so that is not measured.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        from spark_jobs.decoding.decoders import prepare
        from spark_jobs.kafka_source import read_ranges
        from spark_jobs.session import build_session

        self.records = self.rows = 0
        self._pipeline = pipeline
        self._spark = build_session(f"bench {pipeline.name}")
        self._lease = writers.acquire(pipeline.name)
        create_written_topics(pipeline)
        self._generation = generations.current_or_first(pipeline.name, "bench")
        every = source_topic_partitions(pipeline.source, describe_source(pipeline.source))
        bounds = kafka.offset_bounds(every)
        self._begins = {tp: low for tp, (low, _) in bounds.items()}
        # As a stream does for the schema ids that it meets, and then begins its micro-batch again.
        prepare(pipeline.decoder, read_ranges(self._spark, [OffsetRange(tp, *bound) for tp, bound in bounds.items()]))

    def bare(self, number: int) -> DataStreamWriter:
        """Bare PySpark, into files."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import ArrayType

        from spark_jobs.decoding.records import COORDINATES, transform

        event_time = self._pipeline.archive.event_time
        # Named like the archive's: a row may have a `timestamp` of its own.
        message = self._read().select(
            *(F.col(name.removeprefix("kafka_")).alias(name) for name in COORDINATES),
            self._plain_message().alias("message"),
        )
        rows = transform(self._pipeline, self._pipeline.archive.rows)(F.col("message"))
        found = message.select(*COORDINATES, rows.alias("row"))
        made = found.schema["row"]
        # Else Spark asks whether there are rows before it makes them, and parses each message twice.
        if isinstance(made.dataType, ArrayType):
            found = found.withColumn("row", F.explode_outer("row"))
        elif made.nullable:
            found = found.withColumn("row", F.explode(F.array("row")))
        flat = found.where("row IS NOT NULL").select(*COORDINATES, "row.*")
        dated = flat.withColumn("date", F.date_format(event_time, "yyyy-MM-dd"))
        return _to_files(dated, f"bare-{number}", "date")

    def bare_rows(self, number: int) -> int:
        """How many rows with an event time a run of `bare` wrote: it is to do the same work."""
        from pyspark.sql import functions as F

        written = self._spark.read.parquet(lake.uri("bench", f"bare-{number}"))
        return written.where(F.col(self._pipeline.archive.event_time).isNotNull()).count()

    def decoded(self, number: int) -> DataStreamWriter:
        """Bare PySpark into files too, but every record decoded strictly and judged by the row rules."""
        from spark_jobs.decoding.records import decode

        return _to_files(decode(self._pipeline, self._read()), f"decoded-{number}", "outcome", "date")

    def _plain_message(self) -> Column:
        from pyspark.sql import functions as F

        decoder = self._pipeline.decoder
        if isinstance(decoder, Avro):
            from pyspark.sql.avro.functions import from_avro

            # With another schema than its writer's, a record is no record or, worse, another one.
            header, body = F.substring("value", 1, 5), F.expr("substring(value, 6)")
            options = {"mode": "PERMISSIVE", "avroSchema": decoder.schema}
            by_id = {
                each: from_avro(body, writer, options)
                for each, writer in writer_schemas().resolved().items()
                if isinstance(writer, str)
            }
            return F.coalesce(
                *(F.when(header == b"\0" + each.to_bytes(4, "big"), read) for each, read in by_id.items())
            )
        return F.from_json(F.col("value").cast("string"), decoder.schema)

    def archive(self, number: int) -> DataStreamWriter:
        """The archive query: landing, quarantine, counts, commits."""
        from spark_jobs.decoding.records import decode
        from spark_jobs.sinks.landing import LandingSink

        forget(self._pipeline.name)
        checkpoint = lake.uri("bench", f"checkpoint-{number}")
        self.records = self.rows = 0

        def count(commit: BatchCommit) -> None:
            self.records += sum(fates.records for fates in commit.fates.values())
            self.rows += sum(file.rows for file in commit.files if file.outcome == "archived")

        def land(batch: DataFrame, batch_id: int) -> None:
            LandingSink(self._pipeline, self._lease, query_id_of(batch), checkpoint, count).land(batch, batch_id)

        decoded = decode(self._pipeline, self._read())
        query = decoded.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        return query.foreachBatch(land)

    def speed(self, view: AdditiveView, number: int) -> DataStreamWriter:
        """A speed query: decoding, state, the compacted topic and the view's further sinks."""
        from spark_jobs.decoding.records import archive_rows, decode
        from spark_jobs.sinks.speed_view import SpeedViewSink
        from spark_jobs.view_rows import aggregate_stream

        forget(self._pipeline.name)
        checkpoint = lake.uri("bench", f"{view.name}-{number}")

        def emit(batch: DataFrame, batch_id: int) -> None:
            sink = SpeedViewSink(
                self._pipeline, view, self._lease, self._generation, None, query_id_of(batch), checkpoint
            )
            sink.emit(batch, batch_id)

        rows = archive_rows(self._pipeline, decode(self._pipeline, self._read()))
        aggregates = aggregate_stream(self._spark, self._pipeline, view, rows)
        query = aggregates.writeStream.outputMode(view.mode).option("checkpointLocation", checkpoint)
        return query.trigger(availableNow=True).foreachBatch(emit)

    def end(self) -> None:
        """Release the lease, stop Spark."""
        writers.release(self._lease)
        self._spark.stop()

    def _read(self) -> DataFrame:
        from spark_jobs.kafka_source import read_stream

        writers.renew(self._lease)
        return read_stream(self._spark, self._pipeline.source, self._begins)


def _to_files(rows: DataFrame, name: str, *partition_by: str) -> DataStreamWriter:
    """Spark's built-in file sink, to the end of the topics."""
    files = rows.writeStream.format("parquet").option("path", lake.uri("bench", name)).partitionBy(*partition_by)
    checkpoint = lake.uri("bench", f"{name}-checkpoint")
    return files.option("checkpointLocation", checkpoint).trigger(availableNow=True)


def query_id_of(batch: DataFrame) -> str:
    """Id of the streaming query that a batch belongs to."""
    return str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def measure(pipeline: Pipeline, rounds: int, *, speed: bool) -> dict[str, object]:
    """Costs of each side in turns, after as many rounds that do not count; the ratios round by round.

    In the first rounds a good part of the CPU time is the JVM's compilers, which a stream that stays pays once.

    `decoding_cpu_ratio` is what strict decoding and row rules leave of it by themselves, with Spark's own file sink.
    """
    queries = Queries(pipeline)
    sides = (queries.bare, queries.decoded, queries.archive)
    turns = [[cost_of(side(number)) for side in sides] for number in range(2 * rounds)][rounds:]
    pairs = [(bare, ours) for bare, _, ours in turns]
    found: dict[str, object] = {
        "records": queries.records,
        "rows": {"bare": queries.bare_rows(2 * rounds - 1), "tidemark": queries.rows},
        "bare_seconds": [round(b.seconds, 2) for b, _ in pairs],
        "tidemark_seconds": [round(o.seconds, 2) for _, o in pairs],
        "throughput_ratio": spread([b.seconds / o.seconds for b, o in pairs]),
        "cpu_ratio": spread([b.cpu_seconds / o.cpu_seconds for b, o in pairs]),
        "decoding_cpu_ratio": spread([bare.cpu_seconds / decoded.cpu_seconds for bare, decoded, _ in turns]),
        "events_per_cpu_second": round(queries.records / statistics.median(o.cpu_seconds for _, o in pairs)),
    }
    if speed:
        costs = {
            view.name: [cost_of(queries.speed(view, number)) for number in range(2 * rounds)][rounds:]
            for view in pipeline.views
        }
        found["speed_events_per_cpu_second"] = {
            name: round(queries.records / statistics.median(each.cpu_seconds for each in measured))
            for name, measured in costs.items()
        }
    queries.end()
    return found


def spread(ratios: list[float]) -> dict[str, float]:
    """Least, median and largest ratio."""
    named = {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)}
    return {name: round(value, 3) for name, value in named.items()}


def forget(pipeline: str) -> None:
    """Forget earlier rounds: each starts at the topic's beginning."""
    from sqlalchemy import delete

    from include.ledger.models import MicroBatch, Position

    with session() as ledger:
        ledger.execute(delete(Position).where(Position.pipeline == pipeline))
        ledger.execute(delete(MicroBatch).where(MicroBatch.pipeline == pipeline))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--pipeline", default="nest_cameras")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if "TIDEMARK_BENCH" not in os.environ:
        os.environ["TIDEMARK_LEASE_SECONDS"] = "120"
        return resubmit(sys.argv[1:])
    driver_folders.hold()
    pipeline = load_pipeline(arguments.pipeline)
    # The bare query writes Parquet alone, so this one does.
    pipeline = replace(pipeline, archive=replace(pipeline.archive, delta=False))
    found = measure(pipeline, arguments.rounds, speed=arguments.speed)
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
