"""Writes the revisions of a table for one interval, and reads back what it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.intervals.revisions import BuiltRevision
from include.pipelines.spec import IDENTITY, AdditiveView, Pipeline
from include.pipelines.spec.file_formats import FileFormat
from include.times import Interval
from spark_jobs.archive.content_hash import content_hash, row_hashes, sums
from spark_jobs.archive.formats import read_format, write_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.schemas import struct_of

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def revision_name(attempt: int, now: datetime) -> str:
    """Return the name of the revisions of one build: when it was built, and by which attempt.

    To the microsecond: an attempt that is built twice at once writes into folders of its own each time.
    """
    return f"r{now.strftime('%Y%m%dT%H%M%S%f')}-{attempt}"


@dataclass(frozen=True)
class TableLayout:
    """How the files of a table's revisions are written."""

    table: str
    schema: StructType
    order: Sequence[str]
    """Columns by which the rows of a file are totally ordered."""
    partition_by: Sequence[str] = ()
    file_format: FileFormat = "parquet"
    event_time: str = ""
    """Path of the event time in a row, whose bounds are noted then."""


def archive_layout(pipeline: Pipeline) -> TableLayout:
    """Return the layout of the pipeline's archive table."""
    return TableLayout(
        pipeline.table,
        archive_schema(pipeline),
        IDENTITY,
        pipeline.archive.partition_columns,
        pipeline.archive.file_format,
        pipeline.archive.event_time,
    )


def view_layout(pipeline: Pipeline, view: AdditiveView) -> TableLayout:
    """Return the layout of the table of a batch view."""
    return TableLayout(pipeline.view_table(view), struct_of(view.columns), view.key)


@dataclass(frozen=True)
class _Written:
    """A file that lies there, by its rows."""

    rows: int
    sums: tuple[int, int]
    noted: Mapping[str, Any]
    """`records`, the records that the rows come from, and bounds of columns; each where the table has it."""


def write_revisions(rows: DataFrame, layout: TableLayout, interval: Interval, revision: str) -> list[BuiltRevision]:
    """Write rows to a new revision directory per table partition, sorted, and hash what lies there.

    Same rows, same bytes (but for Avro, whose files have a random mark each): columns are cast to the declared
    schema, rows totally ordered inside one file per table partition. The files appear under their final name only
    when all are complete. Raises TidemarkError when rows do not come back from the files as they were.
    """
    schema, partition_by = layout.schema, layout.partition_by
    staging = lake.uri("tables", layout.table, f"_staging-{revision}")
    declared = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    prepared = rows.select(*partition_by, *declared)
    # One file per table partition: shuffled by its columns only where there are any.
    gathered = prepared.repartition(*partition_by) if partition_by else prepared.coalesce(1)
    meant = Observation() if layout.file_format != "parquet" else None
    observed = gathered.observe(meant, *sums(*row_hashes(schema.names))) if meant else gathered
    writer = observed.sortWithinPartitions(*partition_by, *layout.order).write
    write_files(writer.partitionBy(*partition_by) if partition_by else writer, layout.file_format, staging)
    crash_point("revision_staged")
    partitioned = StructType([*schema.fields, *(StructField(name, StringType()) for name in partition_by)])
    staged = read_format(rows.sparkSession, layout.file_format, [staging], partitioned)
    files = _written(staged, layout)
    if meant:
        _check_kept(meant.get, files.values(), prepared, staged, layout)
    built = [_move(staging, folder, names, layout, revision, interval) for folder, names in _by_folder(files).items()]
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
    staging: str, folder: str, files: Mapping[str, _Written], layout: TableLayout, revision: str, interval: Interval
) -> BuiltRevision:
    """Move a table partition's files to their revision directory."""
    partition = "/".join(part for part in (folder, f"interval={interval.label}") if part)
    location = lake.uri("tables", layout.table, partition, revision)
    noted: dict[str, Any] = {}
    for name, written in files.items():
        source = "/".join(part for part in (staging, folder, name) if part)
        noted[name] = {
            "rows": written.rows,
            "bytes": lake.size(source),
            "sha256": lake.sha256(source),
            **written.noted,
        }
        lake.move(source, f"{location}/{name}")
    count = sum(written.rows for written in files.values())
    total_1, total_2 = (sum(written.sums[n] for written in files.values()) for n in (0, 1))
    digest = content_hash(layout.schema.names, count, total_1, total_2)
    return BuiltRevision(layout.table, partition, revision, location, count, digest, noted)


def _written(staged: DataFrame, layout: TableLayout) -> dict[str, _Written]:
    """Rows, hashes, records and bounds of each file that holds a row, by its path below the staging folder."""
    names = layout.schema.names
    of = {name: (F.min(name), F.max(name)) for name in IDENTITY[:3] if name in names}
    if layout.event_time:
        # As text: Python knows fewer years than Spark.
        first, last = F.min(layout.event_time), F.max(layout.event_time)
        of["event_time"] = (F.date_format(first, _TIME), F.date_format(last, _TIME))
    counts = [F.array(*pair).alias(f"bounds_{name}") for name, pair in of.items()]
    if IDENTITY[3] in names:
        counts.append(F.count_if(F.col(IDENTITY[3]) == 0).alias("records"))
    by_file = staged.groupBy(*layout.partition_by, F.col("_metadata.file_name").alias("_file"))
    files = {}
    for row in by_file.agg(*sums(*row_hashes(names)), *counts).collect():
        path = "/".join([*(f"{name}={row[name]}" for name in layout.partition_by), row["_file"]])
        noted = {name: row[f"bounds_{name}"] for name in of if None not in row[f"bounds_{name}"]}
        if IDENTITY[3] in names:
            noted["records"] = row["records"]
        files[path] = _Written(row["rows"], (int(row["sum_1"]), int(row["sum_2"])), noted)
    return files


def _check_kept(
    meant: Mapping[str, Any], files: Iterable[_Written], rows: DataFrame, staged: DataFrame, layout: TableLayout
) -> None:
    """Raise TidemarkError, naming the columns, unless the files hold the rows that were written."""
    wanted = [int(meant.get(name) or 0) for name in ("rows", "sum_1", "sum_2")]
    kept = [sum(numbers) for numbers in zip(*((file.rows, *file.sums) for file in files), strict=True)] or [0, 0, 0]
    if wanted == kept:
        return
    names = layout.schema.names
    hashes = [sums(*row_hashes([name]))[1].alias(name) for name in names]
    before, after = (frame.agg(*hashes).collect()[0] for frame in (rows, staged))
    differing = [name for name in names if before[name] != after[name]]
    raise TidemarkError(
        f"{wanted[0]} rows were written as {layout.file_format}, {kept[0]} come back, not as they were in the columns "
        f"{', '.join(differing) or 'none'}; nothing was registered",
        remedy='declare file_format="parquet", and report this',
    )
