"""Another instance of a stream as its Delta table sees it: micro-batches of one topic partition, each appended twice.

spark-submit tests/support/append_to_delta.py PARTITION BATCHES [COLUMN]

COLUMN, in DDL: one that this instance's declaration has more.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include import lake
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import append_batch
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

ROWS = 20


def land(spark: SparkSession, pipeline: Pipeline, partition: int, batch: int) -> list[str]:
    """The landing files of a micro-batch, below the lake; every column but the offset holds one value."""
    values = {
        "kafka_topic": F.lit("other-gps"),
        "kafka_partition": F.lit(partition),
        "kafka_element": F.lit(0),
        "kafka_offset": F.col("id"),
    }
    columns = [
        values.get(each.name, F.lit(7)).cast(each.dataType).alias(each.name) for each in archive_schema(pipeline)
    ]
    folder = f"landing/other-{partition}/{batch}"
    spark.range(batch * ROWS, (batch + 1) * ROWS).select(*columns).write.parquet(lake.uri(folder))
    return [f"{folder}/{each.name}" for each in lake.list_files(lake.uri(folder))]


def main(argv: list[str]) -> int:
    pipeline = load_pipeline("gps_positions")
    for column in argv[2:]:
        more = replace(pipeline.archive, columns=f"{pipeline.archive.columns}, {column}")
        pipeline = replace(pipeline, archive=more)
    partition, batches = int(argv[0]), int(argv[1])
    spark = build_session("append to delta")
    for batch in range(batches):
        landed = land(spark, pipeline, partition, batch)
        for _ in range(2):
            append_batch(spark, pipeline, landed, f"instance {partition}", batch)
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
