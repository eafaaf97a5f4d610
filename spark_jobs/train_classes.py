"""Does in small what intervals do, so that the JVM has loaded their classes when it dumps them at its end.

spark-submit spark_jobs/train_classes.py

Records are generated, the lake is a temporary folder, and the catalog is a metastore in memory.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from include import lake
from include.pipelines import load_pipeline
from include.pipelines.spec import IDENTITY, Pipeline
from include.producing.generate import messages
from include.times import Interval
from spark_jobs.archive.content_hash import row_hashes, sums
from spark_jobs.archive.schema import archive_schema, with_partition_columns
from spark_jobs.decoding.records import archive_rows, decode, load_references
from spark_jobs.intervals.write import write_revisions
from spark_jobs.publication.catalog import Catalog
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.kafka_source import KAFKA_COLUMNS
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.session import build_session
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.values import key_json, value_json

RECORDS = 500
START = datetime(2026, 1, 1, tzinfo=UTC)

METASTORE = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:training;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
}


def records(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Generated records in the columns of Spark's Kafka source."""
    made = messages(pipeline, events=RECORDS, seed=1, bad_fraction=0.1, start=START, span=timedelta(minutes=50))
    rows: list[tuple[object, ...]] = [
        (key, value, pipeline.source.named[0], n % 2, n // 2, moment, 0, [])
        for n, (moment, key, value, _) in enumerate(made)
        # Oversized ones only cost time here.
        if len(value or b"") < 100_000
    ]
    return frame_of(spark, rows, KAFKA_COLUMNS)


def train(spark: SparkSession, pipeline: Pipeline) -> None:
    """Land, read back, compare, aggregate, write and register, as the jobs of an interval do."""
    landing = lake.uri("training", pipeline.name)
    decoded = decode(pipeline, records(spark, pipeline)).persist()
    decoded.write.partitionBy("fate", "date").parquet(landing)
    landed = spark.read.schema(archive_schema(pipeline)).parquet(f"{landing}/fate=archived")
    rows = archive_rows(pipeline, landed)
    sides = [archive_rows(pipeline, decoded), rows]
    hashes = [each.alias(f"hash_{n}") for n, each in enumerate(row_hashes(archive_schema(pipeline).names))]
    hashed = [side.select(*IDENTITY, *hashes) for side in sides]
    for side in hashed:
        side.groupBy("kafka_topic", "kafka_partition").agg(*sums("hash_0", "hash_1")).collect()
    hashed[0].join(hashed[1].withColumnRenamed("hash_0", "other"), list(IDENTITY), "full_outer").where(
        ~F.col("hash_0").eqNullSafe(F.col("other"))
    ).orderBy(*IDENTITY).limit(3).collect()
    before = F.lag("kafka_offset").over(Window.partitionBy("kafka_topic", "kafka_partition").orderBy("kafka_offset"))
    rows.withColumn("before", before).where(F.col("kafka_offset") > F.col("before") + 1).select("before").toArrow()
    interval = Interval(START, START + timedelta(hours=1))
    built = write_revisions(
        with_partition_columns(pipeline, rows),
        table=pipeline.table,
        schema=archive_schema(pipeline),
        order=IDENTITY,
        partition_by=pipeline.archive.partition_columns,
        interval=interval,
        attempt=1,
    )
    for view in pipeline.views:
        aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline)).persist()
        messages_of = aggregated.select(key_json(view).alias("key"), *view.measures, view.window)
        speed = messages_of.select("key", value_json(view, 1).alias("value"))
        parsed = speed.groupBy("key").agg(F.max_by(F.struct("value"), "key")["value"].alias("value"))
        messages_of.unionByName(messages_of).join(F.broadcast(parsed), "key", "left").distinct().collect()
        built += write_revisions(
            aggregated,
            table=pipeline.view_table(view),
            schema=struct_of(view.columns),
            order=view.key,
            partition_by=(),
            interval=interval,
            attempt=1,
        )
    catalog = Catalog(spark, pipeline)
    catalog.create_tables()
    for revision in built:
        catalog.point_at(revision)
        spark.sql(f"SELECT count(*) FROM lake.{revision.table} WHERE interval = '{interval.label}'").collect()


def main(argv: list[str]) -> int:
    """Train with one pipeline: the classes are Spark's, not the pipeline's."""
    spark = build_session("class training", metastore=METASTORE)
    train(spark, load_pipeline("nest_cameras"))
    spark.stop()
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
