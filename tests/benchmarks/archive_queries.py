"""A pipeline's queries against bare PySpark (`bare_pyspark.py`), in turns: the same topic, the same rows.

Against a driver with PySpark's own configuration, and against bare PySpark in the session of our own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from include import lake
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.database import session
from include.ledger.streams import generations, writers
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Pipeline
from include.settings import settings
from include.spark import driver_folders
from include.spark.submission import submission
from include.streams.written_topics import create_written_topics
from include.versions import decoder_version, view_version
from tests.benchmarks.bare_pyspark import BareDriver, BareQueries, bare_driver, cost_of, to_files, without_delta
from tests.support.audit import last_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def resubmit(argv: list[str], *, delta: bool = False) -> int:
    """Run this file under spark-submit with the configuration that streams get, those with a Delta table if `delta`."""
    job = submission("stream", *argv, name="bench archive", delta=delta)
    command = [Path(__file__).as_posix() if part == job.application else part for part in job.command()]
    return subprocess.run(command, env={**os.environ, **job.env, "TIDEMARK_BENCH": "1"}, check=False).returncode


class Queries:
    """The queries of a pipeline over what its topics hold, each ready to be run to their end."""

    def __init__(self, pipeline: Pipeline) -> None:
        from spark_jobs.spark.session import build_session

        self.records = self.rows = 0
        self._pipeline = pipeline
        self.spark = build_session(f"bench {pipeline.name}")
        self._lease = writers.acquire(pipeline.name)
        create_written_topics(pipeline)
        self._generation = generations.current_or_first(pipeline.name, "bench")
        self._bare = BareQueries(self.spark, pipeline)

    def bare(self, number: int) -> DataStreamWriter:
        """Bare PySpark in this session, into files."""
        self.renew()
        return self._bare.archive(f"bare-{number}")

    def bare_speed(self, view: AdditiveView, number: int) -> DataStreamWriter:
        """Bare PySpark's speed query in this session, into a topic."""
        self.renew()
        return self._bare.speed(view, f"bare-{view.name}-{number}")

    def read(self, view: AdditiveView, number: int) -> DataStreamWriter:
        """What a speed query does before it aggregates, and the archive query, too: reading and decoding."""
        from spark_jobs.decoding.records import archive_rows, decode

        rows = archive_rows(self._pipeline, decode(self._pipeline, self._read()))
        checkpoint = lake.uri("bench", f"read-{view.name}-{number}")
        return rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def decoded(self, number: int) -> DataStreamWriter:
        """Bare PySpark into files too, but every record decoded strictly and judged by the row rules."""
        from spark_jobs.decoding.records import decode

        return to_files(decode(self._pipeline, self._read()), f"decoded-{number}", "fate", "date")

    def archive(self, number: int) -> DataStreamWriter:
        """The archive query: landing, quarantine, counts, commits."""
        from spark_jobs.decoding.records import decode
        from spark_jobs.sinks.landing import LandingSink

        forget(self._pipeline.name)
        checkpoint = lake.uri("bench", f"checkpoint-{number}")
        version = decoder_version(self._pipeline.name)
        self.records = self.rows = 0

        def count(commit: BatchCommit) -> None:
            self.records += sum(fates.records for fates in commit.fates.values())
            self.rows += sum(file.rows for file in commit.files if file.fate == "archived")

        def land(batch: DataFrame, batch_id: int) -> None:
            sink = LandingSink(self._pipeline, self._lease, query_id_of(batch), checkpoint, version, count)
            sink.land(batch, batch_id)

        decoded = decode(self._pipeline, self._read())
        query = decoded.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        return query.foreachBatch(land)

    def speed(self, view: AdditiveView, number: int) -> DataStreamWriter:
        """A speed query: decoding, state, the compacted topic and the view's further sinks."""
        from spark_jobs.decoding.records import archive_rows, decode
        from spark_jobs.sinks.speed_view import SpeedViewSink, targets_of
        from spark_jobs.views.aggregate import aggregate_stream

        forget(self._pipeline.name)
        checkpoint = lake.uri("bench", f"{view.name}-{number}")
        targets = targets_of(self._pipeline, view, self._lease)
        version = view_version(self._pipeline.name, view.name)

        def emit(batch: DataFrame, batch_id: int) -> None:
            sink = SpeedViewSink(
                self._pipeline,
                view,
                self._lease,
                self._generation,
                None,
                query_id_of(batch),
                checkpoint,
                version,
                targets,
            )
            sink.emit(batch, batch_id)

        rows = archive_rows(self._pipeline, decode(self._pipeline, self._read()))
        aggregates = aggregate_stream(self.spark, self._pipeline, view, rows)
        query = aggregates.writeStream.outputMode(view.mode).option("checkpointLocation", checkpoint)
        return query.trigger(availableNow=True).foreachBatch(emit)

    def rows_of(self, name: str) -> int:
        """The number of rows that bare PySpark's archive query wrote into files of that name."""
        return self._bare.rows(name)

    def renew(self) -> None:
        """Keep the lease while other queries run."""
        writers.renew(self._lease)

    def end(self) -> None:
        """Release the lease, stop Spark."""
        writers.release(self._lease)
        self.spark.stop()

    def _read(self) -> DataFrame:
        self.renew()
        return self._bare.records()


def query_id_of(batch: DataFrame) -> str:
    """Id of the streaming query that a batch belongs to."""
    return str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def measure(pipeline: Pipeline, plain: BareDriver, rounds: int, *, speed: bool) -> dict[str, object]:
    """Return the costs of each side, which alternate, after as many warm-up rounds; with the ratios round by round.

    In the first rounds much of the CPU time goes to the JVM's compilers, which a running stream pays once. `bare`:
    PySpark with its own configuration. `in_our_session`: the same query with ours, so the difference is the cost of
    strict decoding and accounting; `decoding_cpu_ratio` is that of strict decoding and row rules alone, with Spark's
    own file sink.
    """
    queries = Queries(pipeline)
    sides = {
        "bare": lambda number: plain.run(f"plain-{number}"),
        "tuned": lambda number: cost_of(queries.bare(number)),
        "decoded": lambda number: cost_of(queries.decoded(number)),
        "ours": lambda number: cost_of(queries.archive(number)),
    }
    every = [{name: run(number) for name, run in sides.items()} for number in range(2 * rounds)]
    turns = every[rounds:]

    def throughput(bare: str) -> dict[str, float]:
        return spread([turn[bare].seconds / turn["ours"].seconds for turn in turns])

    def cpu(bare: str, ours: str = "ours") -> dict[str, float]:
        return spread([turn[bare].cpu_seconds / turn[ours].cpu_seconds for turn in turns])

    last = 2 * rounds - 1
    written = {"bare": f"plain-{last}", "bare_in_our_session": f"bare-{last}"}
    found: dict[str, object] = {
        "records": queries.records,
        "rows": {side: queries.rows_of(name) for side, name in written.items()} | {"tidemark": queries.rows},
        "bare_seconds": [round(turn["bare"].seconds, 2) for turn in turns],
        "tidemark_seconds": [round(turn["ours"].seconds, 2) for turn in turns],
        "throughput_ratio": throughput("bare"),
        "cpu_ratio": cpu("bare"),
        "in_our_session": {
            "throughput_ratio": throughput("tuned"),
            "cpu_ratio": cpu("tuned"),
            "decoding_cpu_ratio": cpu("tuned", "decoded"),
        },
        "events_per_cpu_second": round(queries.records / statistics.median(turn["ours"].cpu_seconds for turn in turns)),
    }
    if speed:
        found["speed"] = {view.name: measure_speed(queries, view, rounds) for view in pipeline.views}
    queries.end()
    return found


def measure_alone(pipeline: Pipeline, rounds: int) -> dict[str, object]:
    """Return the events per CPU second of the archive query and of each speed query, after as many warm-up rounds."""
    queries = Queries(pipeline)

    def rate(run: Callable[[int], DataStreamWriter]) -> int:
        used = [cost_of(run(number)).cpu_seconds for number in range(2 * rounds)]
        return round(queries.records / statistics.median(used[rounds:]))

    archive = rate(queries.archive)
    speed = {view.name: rate(partial(queries.speed, view)) for view in pipeline.views}
    queries.end()
    return {"records": queries.records, "archive": archive, "speed": speed}


def measure_speed(queries: Queries, view: AdditiveView, rounds: int) -> dict[str, object]:
    """Return the costs of a view's speed query against bare PySpark in the session of our own, in turns likewise.

    PySpark's own configuration has 200 state stores, which take many times as long on a small machine. `second_read`:
    the share of reading and decoding, which the archive query does as well. `differing`: keys whose last values differ.
    """
    sides = {
        "bare": lambda number: cost_of(queries.bare_speed(view, number)),
        "read": lambda number: cost_of(queries.read(view, number)),
        "ours": lambda number: cost_of(queries.speed(view, number)),
    }
    turns = [{name: run(number).cpu_seconds for name, run in sides.items()} for number in range(2 * rounds)][rounds:]
    ours, bare = values_of(view.speed.topic, view), values_of(f"bare-{view.name}-{2 * rounds - 1}", view)
    return {
        "cpu_ratio": spread([turn["bare"] / turn["ours"] for turn in turns]),
        "second_read": spread([turn["read"] / turn["ours"] for turn in turns]),
        "events_per_cpu_second": round(queries.records / statistics.median(turn["ours"] for turn in turns)),
        "keys": len(ours),
        "differing": sum(ours.get(key) != bare.get(key) for key in ours.keys() | bare.keys()),
    }


def values_of(topic: str, view: AdditiveView) -> dict[str, list[Decimal]]:
    """The measures in the last value of each key of a topic."""
    last = last_values(settings().kafka_address(), topic)
    return {key: [Decimal(str(value[name])) for name in view.measures] for key, value in last.items()}


def spread(ratios: list[float]) -> dict[str, float]:
    """Return the smallest, the median and the largest ratio."""
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
    parser.add_argument("--speed", action="store_true", help="speed queries, too")
    parser.add_argument("--alone", action="store_true", help="Tidemark's archive and speed queries, without PySpark's")
    arguments = parser.parse_args()
    # Alone as it is shipped: a core carries its Delta table, too.
    pipeline = load_pipeline(arguments.pipeline) if arguments.alone else without_delta(arguments.pipeline)
    if "TIDEMARK_BENCH" not in os.environ:
        os.environ["TIDEMARK_LEASE_SECONDS"] = "120"
        return resubmit(sys.argv[1:], delta=pipeline.archive.delta)
    driver_folders.hold()
    if arguments.alone:
        found = measure_alone(pipeline, arguments.rounds)
    else:
        with bare_driver(arguments.pipeline) as plain:
            found = measure(pipeline, plain, arguments.rounds, speed=arguments.speed)
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
