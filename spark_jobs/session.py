"""The only SparkSession builder."""

from __future__ import annotations

from pyspark.sql import SparkSession

from include import lake
from include.spark_submit import SHUFFLE_PARTITIONS


def build_session(name: str, *, catalog: bool = False) -> SparkSession:
    """A session with UTC, declared partition types and quiet logs; `catalog` adds the Hive catalog (2 s)."""
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", SHUFFLE_PARTITIONS)
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", lake.uri("warehouse"))
    )
    if catalog:
        builder = builder.enableHiveSupport()
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
