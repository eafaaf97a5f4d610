"""Writes the revisions of a table for one interval, and reads back what it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.ledger.intervals.revisions import BuiltRevision
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.pipelines.spec import IDENTITY
from include.pipelines.spec.file_formats import FileFormat
from include.times import Interval
from spark_jobs.archive.content_hash import content_hash, row_hashes, sums
from spark_jobs.archive.formats import read_format, write_files

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def revision_name(attempt: int, now: datetime) -> str:
    """Name of the revisions of an attempt: when it was built, and by which attempt."""
    return f"r{now.strftime('%Y%m%dT%H%M%S')}-{attempt}"


@dataclass(frozen=True)
class _Written:
    """A file that lies there, by its rows."""

    rows: int
    sums: tuple[int, int]
    bounds: Mapping[str, Any]


def write_revisions(
    rows: DataFrame,
    *,
    table: str,
    schema: StructType,
    order: Sequence[str],
    partition_by: Sequence[str],
    interval: Interval,
    attempt: int,
    file_format: FileFormat = "parquet",
    event_time: str = "",
) -> list[BuiltRevision]:
    """Write rows to a new revision directory per table partition, sorted, and hash what lies there.

    Same rows, same bytes (but for Avro, whose files have a random mark each): columns are cast to the declared
    schema, rows totally ordered inside one file per table partition. The files appear under their final name only
    when all are complete. `event_time` is the path of the event time in a row, whose bounds are noted then.
    Raises TidemarkError when rows do not come back from the files as they were.
    """
    revision = revision_name(attempt, datetime.now(UTC))
    staging = lake.uri("tables", table, f"_staging-{attempt}")
    lake.delete(staging)
    declared = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    prepared = rows.select(*partition_by, *declared)
    # One file per table partition: shuffled by its columns only where there are any.
    gathered = prepared.repartition(*partition_by) if partition_by else prepared.coalesce(1)
    meant = Observation() if file_format != "parquet" else None
    observed = gathered.observe(meant, *sums(*row_hashes(schema.names))) if meant else gathered
    ordered = observed.sortWithinPartitions(*partition_by, *order)
    writer = ordered.write
    write_files(writer.partitionBy(*partition_by) if partition_by else writer, file_format, staging)
    crash_point("revision_staged")
    partitioned = StructType([*schema.fields, *(StructField(name, StringType()) for name in partition_by)])
    lying = read_format(rows.sparkSession, file_format, [staging], partitioned)
    files = _written(lying, schema, partition_by, event_time)
    if meant:
        _check_kept(meant.get, files.values(), prepared, lying, schema, file_format)
    built = [
        _move(staging, folder, names, table, revision, interval, schema) for folder, names in _by_folder(files).items()
    ]
    lake.delete(staging)
    crash_point("revision_written")
    return built


def _by_folder(files: Mapping[str, _Written]) -> dict[str, dict[str, _Written]]:
    folders: dict[str, dict[str, _Written]] = defaultdict(dict)
    for path, written in sorted(files.items()):
        folder, _, name = path.rpartition("/")
        folders[folder][name] = written
    return folders


def _move(
    staging: str,
    folder: str,
    files: Mapping[str, _Written],
    table: str,
    revision: str,
    interval: Interval,
    schema: StructType,
) -> BuiltRevision:
    """Move a table partition's files to their revision directory."""
    partition = "/".join(part for part in (folder, f"interval={interval.label}") if part)
    location = lake.uri("tables", table, partition, revision)
    noted: dict[str, Any] = {}
    for name, written in files.items():
        source = "/".join(part for part in (staging, folder, name) if part)
        noted[name] = {
            "rows": written.rows,
            "bytes": lake.size(source),
            "sha256": lake.sha256(source),
            **written.bounds,
        }
        lake.move(source, f"{location}/{name}")
    count = sum(written.rows for written in files.values())
    total_1, total_2 = (sum(written.sums[n] for written in files.values()) for n in (0, 1))
    digest = content_hash(schema.names, count, total_1, total_2)
    return BuiltRevision(table, partition, revision, location, count, digest, noted)


def _written(lying: DataFrame, schema: StructType, partition_by: Sequence[str], event_time: str) -> dict[str, _Written]:
    """Rows, hashes and bounds of each file that holds a row, by its path below the staging folder."""
    bounded = [name for name in IDENTITY[:3] if name in schema.names]
    of = {name: (F.min(name), F.max(name)) for name in bounded}
    if event_time:
        # As text: Python knows fewer years than Spark.
        first, last = F.min(event_time), F.max(event_time)
        of["event_time"] = (F.date_format(first, _TIME), F.date_format(last, _TIME))
    bounds = [F.array(*pair).alias(f"bounds_{name}") for name, pair in of.items()]
    files = lying.groupBy(*partition_by, F.col("_metadata.file_name").alias("_file"))
    found = {}
    for row in files.agg(*sums(*row_hashes(schema.names)), *bounds).collect():
        path = "/".join([*(f"{name}={row[name]}" for name in partition_by), row["_file"]])
        noted = {name: row[f"bounds_{name}"] for name in of if None not in row[f"bounds_{name}"]}
        found[path] = _Written(row["rows"], (int(row["sum_1"]), int(row["sum_2"])), noted)
    return found


def _check_kept(
    meant: Mapping[str, Any],
    files: Iterable[_Written],
    rows: DataFrame,
    lying: DataFrame,
    schema: StructType,
    file_format: FileFormat,
) -> None:
    """Raise TidemarkError, naming the columns, unless the files hold the rows that were written."""
    wanted = [int(meant.get(name) or 0) for name in ("rows", "sum_1", "sum_2")]
    found = [sum(numbers) for numbers in zip(*((file.rows, *file.sums) for file in files), strict=True)] or [0, 0, 0]
    if wanted == found:
        return
    hashes = [sums(*row_hashes([name]))[1].alias(name) for name in schema.names]
    before, after = (frame.agg(*hashes).collect()[0] for frame in (rows, lying))
    differing = [name for name in schema.names if before[name] != after[name]]
    raise TidemarkError(
        f"{wanted[0]} rows were written as {file_format}, {found[0]} come back, not as they were in the columns "
        f"{', '.join(differing) or 'none'}; nothing was registered",
        remedy='declare file_format="parquet", and report this',
    )
