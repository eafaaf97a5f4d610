"""Another instance of a stream: reads topic partitions of its own from Kafka, and appends to the same Delta table.

spark-submit tests/support/second_instance.py TOPIC PARTITION QUERY

It reads what is there, some records a micro-batch, and ends. Each micro-batch is appended twice, as after a kill.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include import lake
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from spark_jobs.archive.delta import append_batch, check_store
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.kafka_source import read_stream
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    topic, partition, query = argv[0], int(argv[1]), argv[2]
    pipeline = load_pipeline("gps_positions")
    spark = build_session(query)
    check_store(spark, pipeline)
    carried = {"kafka_topic": "topic", "kafka_partition": "partition", "kafka_offset": "offset"}

    def land_and_append(records: DataFrame, batch: int) -> None:
        folder = f"landing/{query}/{batch}"
        columns = [
            (F.col(carried[each.name]) if each.name in carried else F.lit(0)).cast(each.dataType).alias(each.name)
            for each in archive_schema(pipeline)
        ]
        records.select(*columns).write.parquet(lake.uri(folder))
        landed = [f"{folder}/{each.name}" for each in lake.list_files(lake.uri(folder))]
        for _ in range(2):
            append_batch(records.sparkSession, pipeline, landed, query, batch)

    records = read_stream(spark, KafkaTopics(assign={topic: (partition,)}), {})
    checkpoint = lake.uri("checkpoints", query)
    running = (
        records.writeStream.foreachBatch(land_and_append)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    print(f"{query}: {running.lastProgress['batchId'] + 1} micro-batches")
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
