"""What the archive query and the speed queries are measured against: the same rows by PySpark alone.

`readStream` with the same options, plain `from_json` (or `from_avro` with the schema that the record's id names),
`explode`, then the built-in Parquet file sink partitioned by date, or the view's aggregation with Spark's state and the
built-in Kafka sink. It neither quarantines nor counts nor commits nor fences anything; that is the work the ratio
charges us for.

Run as a script, it is the archive query in a driver of its own with the configuration that PySpark comes with, but for
the jars, the heap and the time zone: what somebody has who writes the query by hand. It runs its query once for each
line that it reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING

import psutil

from include import kafka, lake
from include.kafka.sources import describe_source, source_topic_partitions
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Avro, Pipeline
from include.schemas.writer_schemas import writer_schemas
from include.settings import REPOSITORY, settings
from include.spark.jars import classpath

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass
class Cost:
    """Wall seconds of a run, and CPU seconds of the driver's two processes."""

    seconds: float
    cpu_seconds: float


def cost_of(query: DataStreamWriter) -> Cost:
    """Run a query to its end and measure: Python's process and its JVM, which runs all of Spark here."""
    driver = psutil.Process()
    # Python starts the JVM, or spark-submit's JVM starts Python.
    jvm = next((child for child in driver.children() if child.name() == "java"), driver.parent())
    processes = [driver, *([jvm] if jvm else [])]

    def used() -> float:
        times = [process.cpu_times() for process in processes]
        return sum(each.user + each.system for each in times)

    begun, before = time.monotonic(), used()
    query.start().awaitTermination()
    return Cost(time.monotonic() - begun, used() - before)


class BareQueries:
    """The pipeline's queries in bare PySpark, over what its topics hold.

    A stream's frames are built once, when it starts, so that is not measured.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        from spark_jobs.decoding.decoders import prepare
        from spark_jobs.spark.kafka_source import read_ranges

        self._spark = spark
        self._pipeline = pipeline
        every = source_topic_partitions(pipeline.source, describe_source(pipeline.source))
        bounds = kafka.offset_bounds(every)
        self._begins = {tp: low for tp, (low, _) in bounds.items()}
        # A stream does this for new schema ids, and then begins its micro-batch again.
        prepare(pipeline.decoder, read_ranges(spark, [OffsetRange(tp, *bound) for tp, bound in bounds.items()]))

    def records(self) -> DataFrame:
        """The topics as a stream, from their beginning."""
        from spark_jobs.spark.kafka_source import read_stream

        return read_stream(self._spark, self._pipeline.source, self._begins)

    def archive(self, name: str) -> DataStreamWriter:
        """The archive query, ready to be run, into files of that name."""
        return to_files(self.dated_rows(), name, "date")

    def speed(self, view: AdditiveView, name: str) -> DataStreamWriter:
        """The speed query of a view, ready to be run, into a topic of that name: keys and values as JSON."""
        from pyspark.sql import functions as F

        from spark_jobs.decoding.records import archive_columns
        from spark_jobs.spark.kafka_source import write_stream
        from spark_jobs.views.aggregate import aggregate_stream
        from spark_jobs.views.values import key_json

        columns = [*archive_columns(self._pipeline), F.col(self._pipeline.archive.event_time).alias("event_time")]
        counted = aggregate_stream(self._spark, self._pipeline, view, self._rows().select(*columns))
        value = F.to_json(F.struct(*view.measures), {"ignoreNullFields": "false"})
        messages = counted.select(key_json(view).alias("key"), value.alias("value"))
        kafka.create_topic(name, view.speed.topic_partitions)
        checkpoint = lake.uri("bench", f"{name}-checkpoint")
        query = write_stream(messages, name).outputMode(view.mode).option("checkpointLocation", checkpoint)
        return query.trigger(availableNow=True)

    def messages(self) -> DataFrame:
        """The decoded messages, with the columns that say where they were."""
        from pyspark.sql import functions as F

        from spark_jobs.decoding.records import COORDINATES

        # Named like the archive's: a row may have a `timestamp` of its own.
        return self.records().select(
            *(F.col(name.removeprefix("kafka_")).alias(name) for name in COORDINATES),
            self._message().alias("message"),
        )

    def dated_rows(self) -> DataFrame:
        """The rows of the messages, with their date."""
        from pyspark.sql import functions as F

        return self._rows().withColumn("date", F.date_format(self._pipeline.archive.event_time, "yyyy-MM-dd"))

    def _rows(self) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import ArrayType

        from spark_jobs.decoding.records import COORDINATES, transform

        message = self.messages()
        rows = transform(self._pipeline, self._pipeline.archive.rows)(F.col("message"))
        found = message.select(*COORDINATES, rows.alias("row"))
        made = found.schema["row"]
        # Otherwise Spark checks whether there are rows before it makes them, and parses each message twice.
        if isinstance(made.dataType, ArrayType):
            found = found.withColumn("row", F.explode_outer("row"))
        elif made.nullable:
            found = found.withColumn("row", F.explode(F.array("row")))
        return found.where("row IS NOT NULL").select(*COORDINATES, "row.*")

    def rows(self, name: str) -> int:
        """Return the number of rows with an event time that a run wrote, to check that it does the same work."""
        from pyspark.sql import functions as F

        written = self._spark.read.parquet(lake.uri("bench", name))
        return written.where(F.col(self._pipeline.archive.event_time).isNotNull()).count()

    def _message(self) -> Column:
        from pyspark.sql import functions as F

        decoder = self._pipeline.decoder
        if isinstance(decoder, Avro):
            from pyspark.sql.avro.functions import from_avro

            # With a schema other than its writer's, a record cannot be read or, worse, reads as another one.
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


def to_files(rows: DataFrame, name: str, *partition_by: str) -> DataStreamWriter:
    """Spark's built-in file sink, to the end of the topics."""
    files = rows.writeStream.format("parquet").option("path", lake.uri("bench", name)).partitionBy(*partition_by)
    checkpoint = lake.uri("bench", f"{name}-checkpoint")
    return files.option("checkpointLocation", checkpoint).trigger(availableNow=True)


class BareDriver:
    """The script's driver, seen from another one: each call runs its query once."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers

    def run(self, name: str) -> Cost:
        """Run the query once, into files of that name. Raises SystemExit when its driver has ended."""
        with suppress(BrokenPipeError):
            self._requests.write(f"{name}\n".encode())
            if answer := self._answers.readline():
                return Cost(**json.loads(answer))
        raise SystemExit("the driver of bare PySpark has ended: see above")


@contextmanager
def bare_driver(pipeline: str) -> Iterator[BareDriver]:
    """A driver with PySpark's own configuration, ended with the block."""
    # The settings that spark-submit passed to this driver are not for that one, least of all its JVM.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    # Nor is this driver's PySpark, which is an archive without Spark's scripts.
    environment = {**kept, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, __file__, pipeline]
    # Unbuffered, so that nothing that a dead driver did not take is left to be written at the end.
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin
        assert process.stdout
        # The driver ends when its input ends.
        yield BareDriver(process.stdin, process.stdout)


def without_delta(name: str) -> Pipeline:
    """The pipeline with its archive in Parquet alone, as the bare query writes it."""
    pipeline = load_pipeline(name)
    return replace(pipeline, archive=replace(pipeline.archive, delta=False))


def main() -> None:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    arguments = parser.parse_args()
    # Only answers go there: the JVM would write to it, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.appName(f"bare {arguments.pipeline}")
    builder = builder.config("spark.jars", ",".join(map(str, classpath("spark"))))
    builder = builder.config("spark.driver.memory", settings().driver_memory)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    queries = BareQueries(spark, without_delta(arguments.pipeline))
    for line in sys.stdin:
        print(json.dumps(asdict(cost_of(queries.archive(line.strip())))), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
