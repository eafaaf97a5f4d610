"""Reads of the archive for explicit offset ranges: landing, empty and quarantine files of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include import lake
from include.ledger import micro_batches
from include.offsets import OffsetRange
from include.pipelines.spec import Pipeline
from spark_jobs.decoding.records import EMPTY, QUARANTINED
from spark_jobs.schemas import struct_of
from spark_jobs.table_writer import archive_schema

_COORDINATES = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"


def within(ranges: Iterable[OffsetRange]) -> Column:
    """Whether a row's coordinates lie in one of the ranges."""
    conditions = [
        (F.col("kafka_topic") == r.topic_partition.topic)
        & (F.col("kafka_partition") == r.topic_partition.partition)
        & (F.col("kafka_offset") >= r.from_offset)
        & (F.col("kafka_offset") < r.until_offset)
        for r in ranges
        if len(r)
    ]
    return reduce(Column.__or__, conditions, F.lit(False))


def read_files(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of files below the lake, with that schema; none for no files."""
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(lake.uri(path) for path in paths))


def read_archived(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Archived rows of the ranges. Columns: the archive table's, and `event_time`."""
    paths = micro_batches.files_covering(pipeline.name, ranges, "archived")
    return _with_event_time(pipeline, read_files(spark, paths, archive_schema(pipeline))).where(within(ranges))


def read_archived_by_event_time(spark: SparkSession, pipeline: Pipeline, paths: Sequence[str]) -> DataFrame:
    """Archived rows of the files. Columns: the archive table's, `event_time`, and `kafka_topic_id`."""
    schema = archive_schema(pipeline)
    incarnations: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path, topic_ids in micro_batches.topic_ids_of_files(paths).items():
        incarnations.setdefault(tuple(sorted(topic_ids.items())), []).append(path)
    parts = [
        read_files(spark, files, schema).withColumn("kafka_topic_id", _topic_id(topic_ids))
        for topic_ids, files in sorted(incarnations.items())
    ]
    rows = parts or [read_files(spark, [], schema).withColumn("kafka_topic_id", F.lit(""))]
    return _with_event_time(pipeline, reduce(DataFrame.unionByName, rows))


def _topic_id(topic_ids: Iterable[tuple[str, str]]) -> Column:
    known = [F.when(F.col("kafka_topic") == topic, F.lit(topic_id)) for topic, topic_id in topic_ids]
    return F.coalesce(*known, F.lit(""))


def within_incarnation(ranges: Iterable[OffsetRange]) -> Column:
    """Whether a row with `kafka_topic_id` lies in one of the ranges, in the range's own incarnation."""
    conditions = [within([r]) & (F.col("kafka_topic_id") == r.topic_id) for r in ranges]
    return reduce(Column.__or__, conditions, F.lit(False))


def read_unarchived(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Empty and quarantined records of the ranges. Columns: outcome and coordinates."""
    schema = struct_of(_COORDINATES)
    frames = [
        read_files(spark, micro_batches.files_covering(pipeline.name, ranges, outcome), schema).select(
            F.lit(outcome).alias("outcome"), "*"
        )
        for outcome in (EMPTY, QUARANTINED)
    ]
    return frames[0].unionByName(frames[1]).where(within(ranges))


def _with_event_time(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    return rows.withColumn("event_time", F.col(pipeline.archive.event_time))
