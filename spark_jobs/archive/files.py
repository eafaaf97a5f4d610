"""Files of the archive as frames, and the condition for rows in offset ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include import lake
from include.errors import AnotherWriter
from include.ledger.archive import landing_files
from include.offsets import Fate, OffsetRange
from include.pipelines.spec import Pipeline
from include.pipelines.spec.file_formats import FileFormat, format_of
from spark_jobs.archive.formats import read_format
from spark_jobs.spark.failures import SPARK_FAILURES
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.thrown import missing_file

COORDINATE_COLUMNS = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
"""A record's coordinates in the archive's files, as DDL."""

BROADCAST_AT_MOST = 500_000
"""Coordinates that are broadcast for a join: the driver keeps all of them, in some 100 MB of its heap."""


def within(ranges: Iterable[OffsetRange], at: Column | None = None) -> Column:
    """Return whether a row's coordinates, or those of the struct `at`, lie in one of the ranges."""
    names = ("kafka_topic", "kafka_partition", "kafka_offset")
    topic, partition, offset = (F.col(name) if at is None else at[name] for name in names)
    conditions = [
        (topic == r.topic_partition.topic)
        & (partition == r.topic_partition.partition)
        & (offset >= r.from_offset)
        & (offset < r.until_offset)
        for r in ranges
        if len(r)
    ]
    return any_of(conditions)


def any_of(conditions: Sequence[Column]) -> Column:
    """Return whether one of the conditions holds.

    They are joined in pairs: Spark's stack overflows at some hundreds, each inside of the next.
    """
    if len(conditions) < 2:
        return conditions[0] if conditions else F.lit(False)
    middle = len(conditions) // 2
    return any_of(conditions[:middle]) | any_of(conditions[middle:])


def read_files(
    spark: SparkSession,
    paths: Sequence[str],
    schema: StructType,
    formerly: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> DataFrame:
    """Return the rows of files with this schema; paths are URIs or relative to the lake, and formats may differ.

    `formerly`: renamed columns, each with the names that it has in older files.
    """
    if formerly:
        kinds = {each.name: each.dataType for each in schema.fields}
        also = [StructField(before, kinds[name]) for name, names in formerly.items() for before in names]
        rows = read_files(spark, paths, StructType([*schema.fields, *also]))
        return rows.select(*(_by_any_name(name, formerly.get(name, ())) for name in schema.names))
    by_format: dict[FileFormat, list[str]] = defaultdict(list)
    for path in paths:
        by_format[format_of(path)].append(path if "://" in path else lake.uri(path))
    parts = [read_format(spark, file_format, files, schema) for file_format, files in sorted(by_format.items())]
    return reduce(DataFrame.unionByName, parts) if parts else empty_frame(spark, schema)


def replaced_file(pipeline: str, error: Exception) -> str:
    """Return the path of a missing file of landing or quarantine that the ledger no longer names; empty for another."""
    path = missing_file(error)
    is_of_archive = path.startswith(("landing/", "quarantine/"))
    return path if is_of_archive and not landing_files.is_to_be_there(pipeline, path) else ""


@contextmanager
def while_files_stay(pipeline: str) -> Iterator[None]:
    """Raise AnotherWriter for a file that was replaced while it was read: housekeeping waits for attempts alone."""
    try:
        yield
    except (*SPARK_FAILURES, OSError) as error:
        if not (path := replaced_file(pipeline, error)):
            raise
        raise AnotherWriter(
            f"{path} was merged, removed or written anew while it was read", remedy="repeat this", pipeline=pipeline
        ) from error


def _by_any_name(name: str, before: Sequence[str]) -> Column:
    # A file has a column by one of its names, or by two with the same values.
    return F.coalesce(*(F.col(f"`{each}`") for each in (name, *before))).alias(name) if before else F.col(f"`{name}`")


def read_quarantined(
    spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange], condition: Column | None = None
) -> DataFrame:
    """Return the coordinates of the quarantined records of the ranges, with a condition on `reason` and `detail`."""
    paths = landing_files.files_covering(pipeline.name, ranges, Fate.QUARANTINED)
    columns = struct_of(f"{COORDINATE_COLUMNS}, reason STRING, detail STRING")
    quarantined = read_files(spark, paths, columns).where(within(ranges))
    return (quarantined if condition is None else quarantined.where(condition)).drop("reason", "detail")


def unless_too_many(held: DataFrame, pipeline: Pipeline, ranges: Sequence[OffsetRange], others: int = 0) -> DataFrame:
    """Return coordinates of the ranges' quarantined records, and of `others`, broadcast unless these may be too many.

    Then Spark sorts both sides. It cannot tell by the size of the files, which hold the records whole.
    """
    paths = landing_files.files_covering(pipeline.name, ranges, Fate.QUARANTINED)
    records = others + sum(file.rows for file in landing_files.files_at(pipeline.name, paths))
    if records > BROADCAST_AT_MOST:
        # Few of them may be of the ranges, and of the reasons that are held.
        records = held.limit(BROADCAST_AT_MOST + 1).count()
    return broadcast_few(held, records)


def broadcast_few(coordinates: DataFrame, count: int) -> DataFrame:
    """Return coordinates with the hint to broadcast them, unless these are too many."""
    return coordinates if count > BROADCAST_AT_MOST else F.broadcast(coordinates)
