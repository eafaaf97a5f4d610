"""Writes the revisions of a table for one interval, and reads back what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.crash_points import crash_point
from include.intervals import Interval
from include.ledger.revisions import BuiltRevision
from include.pipelines.spec import IDENTITY, KAFKA_COLUMNS, Pipeline
from spark_jobs.content_hash import content_hash, row_hashes, sums
from spark_jobs.schemas import struct_of


def archive_schema(pipeline: Pipeline) -> StructType:
    """The archive table's columns without its partition columns."""
    return struct_of(f"{pipeline.archive.columns}, {KAFKA_COLUMNS}")


def with_partition_columns(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """Archive rows with `event_time` and the table's partition columns but `interval`, which all share."""
    columns = {name: F.col(source).cast("string") for name, source in pipeline.archive.partition_by.items()}
    return rows.withColumns({"date": F.date_format("event_time", "yyyy-MM-dd"), **columns})


def revision_name(attempt: int, now: datetime) -> str:
    """Name of the revisions of an attempt: when it was built, and by which attempt."""
    return f"r{now.strftime('%Y%m%dT%H%M%S')}-{attempt}"


def write_revisions(
    rows: DataFrame,
    *,
    table: str,
    schema: StructType,
    order: Sequence[str],
    partition_by: Sequence[str],
    interval: Interval,
    attempt: int,
) -> list[BuiltRevision]:
    """Write rows to a new revision directory per table partition, sorted, and hash what lies there.

    Same rows, same bytes: columns are cast to the declared schema, rows totally ordered inside one
    file per table partition. The files appear under their final name only when all are complete.
    """
    revision = revision_name(attempt, datetime.now(UTC))
    staging = lake.uri("tables", table, f"_staging-{attempt}")
    lake.delete(staging)
    declared = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    prepared = rows.select(*partition_by, *declared)
    # One file per table partition: shuffled by its columns only where there are any.
    gathered = prepared.repartition(*partition_by) if partition_by else prepared.coalesce(1)
    ordered = gathered.sortWithinPartitions(*partition_by, *order)
    writer = ordered.write.option("compression", "zstd")
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(staging)
    crash_point("revision_staged")
    hashes = _hash_written(rows.sparkSession, staging, schema, partition_by)
    built = []
    for folder, names in _by_folder(staging).items():
        partition = "/".join(part for part in (folder, f"interval={interval.label}") if part)
        location = lake.uri("tables", table, partition, revision)
        staged = f"{staging}/{folder}" if folder else staging
        files: dict[str, Any] = {name: _describe(f"{staged}/{name}") for name in names}
        for name in names:
            lake.move(f"{staged}/{name}", f"{location}/{name}")
        count, digest = hashes[folder]
        built.append(BuiltRevision(table, partition, revision, location, count, digest, files))
    lake.delete(staging)
    crash_point("revision_written")
    return built


def _by_folder(staging: str) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for file in lake.list_files(staging):
        folder, _, name = file.name.rpartition("/")
        if lake.footer(f"{staging}/{file.name}").num_rows:
            folders.setdefault(folder, []).append(name)
    return folders


def _describe(location: str) -> dict[str, Any]:
    """Rows and offset bounds of a file from its footer, and its bytes with their hash."""
    footer = lake.footer(location)
    found: dict[str, Any] = {
        "rows": footer.num_rows,
        "bytes": lake.size(location),
        "sha256": lake.sha256(location),
    }
    for column in IDENTITY[:3]:
        bounds = lake.column_bounds(footer, column)
        if bounds:
            found[column] = [bounds[0], bounds[1]]
    return found


def _hash_written(
    spark: SparkSession, staging: str, schema: StructType, partition_by: Sequence[str]
) -> dict[str, tuple[int, str]]:
    names = schema.names
    partitioned = StructType([*schema.fields, *(StructField(name, StringType()) for name in partition_by)])
    hash_1, hash_2 = row_hashes(names)
    written = spark.read.schema(partitioned).parquet(staging)
    hashed = written.select(*partition_by, hash_1.alias("hash_1"), hash_2.alias("hash_2"))
    found = {}
    for row in hashed.groupBy(*partition_by).agg(*sums()).collect():
        folder = "/".join(f"{name}={row[name]}" for name in partition_by)
        found[folder] = (row["rows"], content_hash(names, row["rows"], row["sum_1"], row["sum_2"]))
    return found
