"""The archive query against bare PySpark, in turns in one session: the same topic, the same rows to Parquet.

Bare: `readStream` with the same options, plain `from_json`, `explode`, the built-in Parquet file sink partitioned by
date. It neither quarantines nor counts nor commits anything; that is the work the ratio charges us for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from include.ledger.database import session
from include.spark_submit import submission


def resubmit(argv: list[str]) -> int:
    """Run this file under spark-submit with the configuration that streams get."""
    job = submission("stream", *argv, name="bench archive")
    command = [Path(__file__).as_posix() if part == job.application else part for part in job.command()]
    return subprocess.run(command, env={**os.environ, **job.env, "TIDEMARK_BENCH": "1"}, check=False).returncode


def measure(rounds: int) -> dict[str, object]:
    """Seconds of each side in turns, after a round that does not count; the ratio pair by pair."""
    from pyspark.sql import functions as F

    from include import kafka, lake
    from include.ledger import writers
    from include.pipelines import load_pipeline
    from spark_jobs.decoding.records import decode
    from spark_jobs.kafka_source import read_stream
    from spark_jobs.session import build_session
    from spark_jobs.sinks.landing import LandingSink

    pipeline = load_pipeline("nest_cameras")
    spark = build_session("bench archive")
    lease = writers.acquire(pipeline.name)
    topics = kafka.describe_topics(pipeline.source.subscribe).values()
    begins = {tp: low for tp, (low, _) in kafka.offset_bounds(kafka.topic_partitions_of(topics)).items()}
    records = 0

    def bare(number: int) -> None:
        parsed = read_stream(spark, pipeline.source, begins).select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            F.from_json(F.col("value").cast("string"), pipeline.decoder.schema).alias("message"),
        )
        rows = parsed.select("topic", "partition", "offset", "timestamp", F.explode("message.devices.cameras"))
        flat = rows.select("topic", "partition", "offset", "timestamp", "value.*")
        dated = flat.withColumn("date", F.date_format("last_event.start_time", "yyyy-MM-dd"))
        query = (
            dated.writeStream.format("parquet")
            .option("path", lake.uri("bench", f"bare-{number}"))
            .option("checkpointLocation", lake.uri("bench", f"bare-checkpoint-{number}"))
            .partitionBy("date")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def ours(number: int) -> None:
        nonlocal records
        forget(pipeline.name)
        checkpoint = lake.uri("bench", f"checkpoint-{number}")
        seen = 0

        def land(batch, batch_id):  # type: ignore[no-untyped-def]
            nonlocal seen
            query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")

            def count(commit) -> None:  # type: ignore[no-untyped-def]
                nonlocal seen
                seen += sum(fates.records for fates in commit.fates.values())

            writers.renew(lease)
            LandingSink(pipeline, lease, query_id, checkpoint, count).land(batch, batch_id)

        decoded = decode(pipeline, read_stream(spark, pipeline.source, begins))
        query = decoded.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.foreachBatch(land).start().awaitTermination()
        records = seen

    def seconds(run: Callable[[int], None], number: int) -> float:
        writers.renew(lease)
        begun = time.monotonic()
        run(number)
        return time.monotonic() - begun

    pairs = [(seconds(bare, number), seconds(ours, number)) for number in range(rounds + 1)][1:]
    writers.release(lease)
    spark.stop()
    ratios = sorted(bare_seconds / our_seconds for bare_seconds, our_seconds in pairs)
    return {
        "records": records,
        "bare_seconds": [round(b, 2) for b, _ in pairs],
        "tidemark_seconds": [round(o, 2) for _, o in pairs],
        "throughput_ratio": {
            "min": round(ratios[0], 3),
            "median": round(statistics.median(ratios), 3),
            "max": round(ratios[-1], 3),
        },
    }


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
    arguments = parser.parse_args()
    if "TIDEMARK_BENCH" not in os.environ:
        os.environ["TIDEMARK_LEASE_SECONDS"] = "120"
        return resubmit(sys.argv[1:])
    arguments.result.write_text(json.dumps(measure(arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
