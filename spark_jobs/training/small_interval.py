"""A small interval: records are generated, the lake is a temporary folder, the catalog a metastore in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from include import lake
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import IDENTITY, Pipeline
from include.producing.generate import messages
from include.times import Interval
from spark_jobs.archive.content_hash import row_hashes, sums
from spark_jobs.archive.schema import archive_schema, with_partition_columns
from spark_jobs.decoding.records import archive_rows, decode, load_references
from spark_jobs.intervals.write import archive_layout, view_layout, write_revisions
from spark_jobs.publication.catalog import Catalog
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.kafka_source import KAFKA_COLUMNS
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.values import key_json, value_json

RECORDS = 500
START = datetime(2026, 1, 1, tzinfo=UTC)
_INTERVAL = Interval(START, START + timedelta(hours=1))
_REVISION = "r20260101T000000-1"

METASTORE = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:training;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
}
"""Properties of a metastore that is gone with its session."""


def run_small_interval(spark: SparkSession, pipeline: Pipeline) -> None:
    """Land, read back, compare, aggregate, write and register, as the jobs of an interval do."""
    landing = lake.uri("training", pipeline.name)
    decoded = decode(pipeline, _records(spark, pipeline)).persist()
    decoded.write.partitionBy("fate", "date").parquet(landing)
    rows = archive_rows(pipeline, spark.read.schema(archive_schema(pipeline)).parquet(f"{landing}/fate=archived"))
    _compare(pipeline, archive_rows(pipeline, decoded), rows)
    partitioned = with_partition_columns(pipeline, rows)
    built = write_revisions(partitioned, archive_layout(pipeline), _INTERVAL, _REVISION)
    _register(spark, pipeline, [*built, *_views(spark, pipeline, rows)])


def _records(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Return generated records in the columns of Spark's Kafka source."""
    made = messages(pipeline, events=RECORDS, seed=1, bad_fraction=0.1, start=START, span=timedelta(minutes=50))
    rows: list[tuple[object, ...]] = [
        (key, value, pipeline.source.named[0], n % 2, n // 2, moment, 0, [])
        for n, (moment, key, value, _) in enumerate(made)
        # Oversized records would only cost time here.
        if len(value or b"") < 100_000
    ]
    return frame_of(spark, rows, KAFKA_COLUMNS)


def _compare(pipeline: Pipeline, decoded: DataFrame, landed: DataFrame) -> None:
    hashes = [each.alias(f"hash_{n}") for n, each in enumerate(row_hashes(archive_schema(pipeline)))]
    ours, theirs = (side.select(*IDENTITY, *hashes) for side in (decoded, landed))
    for side in (ours, theirs):
        side.groupBy("kafka_topic", "kafka_partition").agg(*sums("hash_0", "hash_1")).collect()
    renamed = theirs.withColumnRenamed("hash_0", "other")
    differing = ours.join(renamed, list(IDENTITY), "full_outer").where(~F.col("hash_0").eqNullSafe(F.col("other")))
    differing.orderBy(*IDENTITY).limit(3).collect()
    before = F.lag("kafka_offset").over(Window.partitionBy("kafka_topic", "kafka_partition").orderBy("kafka_offset"))
    gaps = landed.withColumn("before", before).where(F.col("kafka_offset") > F.col("before") + 1)
    gaps.select("before").toArrow()


def _views(spark: SparkSession, pipeline: Pipeline, rows: DataFrame) -> list[BuiltRevision]:
    built: list[BuiltRevision] = []
    for view in pipeline.views:
        aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline)).persist()
        windows = [view.window] if view.window else []
        batch = aggregated.select(key_json(view).alias("key"), *view.measures, *windows)
        speed = batch.select("key", value_json(view, 1).alias("value"))
        last = speed.groupBy("key").agg(F.max_by(F.struct("value"), "key")["value"].alias("value"))
        batch.unionByName(batch).join(F.broadcast(last), "key", "left").distinct().collect()
        built += write_revisions(aggregated, view_layout(pipeline, view), _INTERVAL, _REVISION)
    return built


def _register(spark: SparkSession, pipeline: Pipeline, built: Sequence[BuiltRevision]) -> None:
    catalog = Catalog(spark, pipeline)
    catalog.create_tables()
    for revision in built:
        catalog.point_at(revision)
        spark.sql(f"SELECT count(*) FROM lake.{revision.table} WHERE interval = '{_INTERVAL.label}'").collect()
