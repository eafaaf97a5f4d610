"""The archive query taken apart: the same records by ever more of its steps, beside PySpark's, in one warm driver.

Run by `bench ablation` under spark-submit. Every query reads the topics from their beginning, and does all that the one
before it does and one thing more: what it costs beyond that one is what the step costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from include import lake
from include.pipelines.spec import Json, Pipeline
from include.spark import driver_folders
from include.spark.submission import submission
from tests.benchmarks.archive_queries import Queries
from tests.benchmarks.bare_pyspark import BareQueries, cost_of, without_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

READ = "read from Kafka"
PARSED = "parsed, without the seal"
SEALED = "sealed"
ROWS = "rows made, rules of all archives"
RULES = "the pipeline's rules"
CARRIED = "columns that the record carries"
WRITTEN = "written as Parquet"
SORTED = "by fate and date"
ENCODED = "encodings by column"
LANDED = "read back, counted, committed"

BARE_PARSED = "parsed"
BARE_ROWS = "rows made"
BARE_SORTED = "by date"


class Steps:
    """Queries over what the pipeline's topics hold; each does one thing more than the one before."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._queries = Queries(pipeline)
        self._bare = BareQueries(self._queries.spark, pipeline)
        self._number = 0

    @property
    def records(self) -> int:
        """How many records the archive query read."""
        return self._queries.records

    def ours(self) -> dict[str, Callable[[], DataStreamWriter]]:
        """The steps of the archive query in their order."""
        from pyspark.sql import functions as F

        from spark_jobs.archive.landing_folder import write_landing
        from spark_jobs.decoding.decoders import decoding_of
        from spark_jobs.decoding.records import archive_columns, decode
        from spark_jobs.spark.schemas import struct_of

        pipeline, decoding = self._pipeline, decoding_of(self._pipeline.decoder)
        lenient = replace(pipeline, archive=replace(pipeline.archive, rules=()))
        rows = ("fate", *archive_columns(pipeline), "date")

        def unsealed() -> DataFrame:
            assert isinstance(pipeline.decoder, Json)
            schema = struct_of(pipeline.decoder.schema).add("tidemark_corrupt", "string")
            options = {"columnNameOfCorruptRecord": "tidemark_corrupt"}
            return self._bare.records().select("*", F.from_json(F.col("value").cast("string"), schema, options))

        def sealed() -> DataFrame:
            read = self._bare.records().withColumn("parsable", decoding.parsable(pipeline.decoder, F.col("value")))
            return read.select("*", decoding.parse(pipeline.decoder, F.col("parsable")).alias("parsed"))

        def decoded(of: Pipeline = pipeline) -> DataFrame:
            return decode(of, self._bare.records())

        steps = {
            READ: lambda: self._to_nowhere(self._bare.records()),
            PARSED: lambda: self._to_nowhere(unsealed()),
            SEALED: lambda: self._to_nowhere(sealed()),
            ROWS: lambda: self._to_nowhere(decoded(lenient).select(*rows)),
            RULES: lambda: self._to_nowhere(decoded().select(*rows)),
            CARRIED: lambda: self._to_nowhere(decoded()),
            WRITTEN: lambda: self._to_folder(decoded(), lambda batch, to: batch.write.parquet(to)),
            SORTED: lambda: self._to_folder(
                decoded(), lambda batch, to: batch.write.partitionBy("fate", "date").parquet(to)
            ),
            ENCODED: lambda: self._to_folder(decoded(), partial(write_landing, pipeline)),
            LANDED: lambda: self._queries.archive(self._next()),
        }
        if not isinstance(pipeline.decoder, Json):
            del steps[PARSED]
        return steps

    def bare(self) -> dict[str, Callable[[], DataStreamWriter]]:
        """The steps of PySpark's query in their order."""

        def write(batch: DataFrame, to: str) -> None:
            batch.write.parquet(to)

        return {
            READ: lambda: self._to_nowhere(self._bare.records()),
            BARE_PARSED: lambda: self._to_nowhere(self._bare.messages()),
            BARE_ROWS: lambda: self._to_nowhere(self._bare.dated_rows()),
            WRITTEN: lambda: self._to_folder(self._bare.dated_rows(), write),
            BARE_SORTED: lambda: self._queries.bare(self._next()),
        }

    def end(self) -> None:
        """Stop Spark."""
        self._queries.end()

    def _to_nowhere(self, rows: DataFrame) -> DataStreamWriter:
        return self._ready(rows).format("noop")

    def _to_folder(self, rows: DataFrame, write: Callable[[DataFrame, str], None]) -> DataStreamWriter:
        folder = lake.uri("bench", f"folder-{self._next()}")
        return self._ready(rows).foreachBatch(lambda batch, number: write(batch, f"{folder}/{number}"))

    def _ready(self, rows: DataFrame) -> DataStreamWriter:
        self._queries.renew()
        checkpoint = lake.uri("bench", f"steps-{self._next()}")
        return rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def _next(self) -> int:
        self._number += 1
        return self._number


def measure(pipeline: Pipeline, rounds: int) -> dict[str, object]:
    """CPU seconds per million records of each step on both sides; the queries take turns, and half of them warm up."""
    steps = Steps(pipeline)
    sides = {"tidemark": steps.ours(), "bare": steps.bare()}
    # The cheapest of the warm runs: others that use the machine make some dearer, and none cheaper.
    cheapest: dict[tuple[str, str], float] = {}
    for number in range(2 * rounds):
        for side, queries in sides.items():
            for step, query in queries.items():
                used = cost_of(query()).cpu_seconds
                if number >= rounds:
                    cheapest[side, step] = min(used, cheapest.get((side, step), used))
    records = steps.records
    steps.end()
    found: dict[str, object] = {"records": records}
    for side, queries in sides.items():
        found[side] = added([(step, cheapest[side, step] / records * 1e6) for step in queries])
    return found


def added(totals: list[tuple[str, float]]) -> dict[str, float]:
    """Return what each step adds to the one before it, of what they cost together up to each; then all of them."""
    earlier = [0.0, *(total for _, total in totals)]
    told = {step: round(total - before, 2) for (step, total), before in zip(totals, earlier, strict=False)}
    return {**told, "all": round(totals[-1][1], 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    if "TIDEMARK_BENCH" not in os.environ:
        job = submission("stream", *sys.argv[1:], name="bench ablation")
        command = [Path(__file__).as_posix() if part == job.application else part for part in job.command()]
        environment = {**os.environ, **job.env, "TIDEMARK_BENCH": "1", "TIDEMARK_LEASE_SECONDS": "120"}
        return subprocess.run(command, env=environment, check=False).returncode
    driver_folders.hold()
    found = measure(without_delta(arguments.pipeline), arguments.rounds)
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
