"""Writes the revisions of a table for one interval, and reads back what it wrote."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.lineage import BuiltRevision
from include.offsets import Fates, TopicPartition
from include.pipelines.spec import IDENTITY, AdditiveView, Pipeline
from include.pipelines.spec.file_formats import FileFormat
from include.times import Interval
from spark_jobs.archive.content_hash import NEWEST, HashVersion, content_hash, row_hashes, sums
from spark_jobs.archive.field_ids import give_ids
from spark_jobs.archive.formats import read_format, write_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.reconciliation.counted import TOPIC_PARTITION, Counted, CountedRows, added, hash_sums
from spark_jobs.spark.schemas import struct_of

_ONE_TASK = 2_000_000
"""Up to this many records, one task reads, sorts and writes the rows of all table partitions. Most rows of an hour have
the same date, so one task writes them anyway."""

_FILE = "tidemark_file"
"""Column of rows that are read back, with the name of their file."""

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


def revision_name(attempt: int, now: datetime) -> str:
    """Return the name of the revisions of one build: when it was built, and by which attempt.

    Microseconds keep the folders of an attempt that is built twice at once apart.
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
    """Path of the event time in a row; if set, its bounds are noted."""
    hashed_by: HashVersion = NEWEST
    records: int = 0
    """Most records that the rows come from."""
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Field numbers of an Iceberg table by path, which are written into the files."""
    also_named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Former names of columns, which the files have as well: each with the column that it repeats."""


def archive_layout(pipeline: Pipeline, hashed_by: HashVersion = NEWEST, records: int = 0) -> TableLayout:
    """Return the layout of the pipeline's archive table."""
    return TableLayout(
        pipeline.table,
        archive_schema(pipeline),
        IDENTITY,
        pipeline.archive.partition_columns,
        pipeline.archive.file_format,
        pipeline.archive.event_time,
        hashed_by,
        records,
    )


def view_layout(pipeline: Pipeline, view: AdditiveView, hashed_by: HashVersion = NEWEST) -> TableLayout:
    """Return the layout of the table of a batch view."""
    return TableLayout(pipeline.view_table(view), struct_of(view.columns), view.key, hashed_by=hashed_by)


@dataclass(frozen=True)
class Written:
    """What was written of a table."""

    revisions: list[BuiltRevision]
    counted: CountedRows
    """The rows that were read back from the files; empty for views."""


@dataclass(frozen=True)
class _File:
    """A written file, described by its rows."""

    hashes: tuple[int, int, int]
    """Rows, and the sums of both hashes."""
    counted: CountedRows
    noted: Mapping[str, Any]
    """`records`, the records that the rows come from, and bounds of columns; each where the table has it."""


@contextmanager
def deleted_on_failure(locations: Iterable[str], failure: type[BaseException] = BaseException) -> Iterator[None]:
    """Delete what lies at these URIs, which are read only then, when an exception of this class leaves the block.

    The ledger does not list them, but a reader of the table's whole folder would see their rows.
    """
    try:
        yield
    except failure:
        for location in locations:
            # The first error is the one to report; housekeeping finds what is left.
            with suppress(TidemarkError, OSError):
                lake.delete(location)
        raise


def write_revisions(rows: DataFrame, layout: TableLayout, interval: Interval, revision: str) -> list[BuiltRevision]:
    """Write rows to revisions. Raises as `write_counted`."""
    return write_counted(rows, layout, interval, revision).revisions


def write_counted(rows: DataFrame, layout: TableLayout, interval: Interval, revision: str) -> Written:
    """Write rows to a new revision directory per table partition, sorted, and hash the rows of the files.

    The same rows give the same bytes (except in Avro, whose files carry a random marker): columns are cast to the
    declared schema, and rows totally ordered inside one file per table partition. The files appear under their final
    names only when all are complete, and none stays when an exception ends this. Raises TidemarkError when rows do not
    come back from the files as they were.
    """
    staging = lake.uri("tables", layout.table, f"_staging-{revision}")
    begun = [staging]
    with deleted_on_failure(begun):
        files = _write_staged(rows, layout, staging)
        folders = _by_folder(files)
        begun += [lake.uri("tables", layout.table, _partition(folder, interval), revision) for folder in folders]
        built = [_move(staging, folder, names, layout, revision, interval) for folder, names in folders.items()]
        lake.delete(staging)
    crash_point("revision_written")
    return Written(built, reduce(added, (file.counted for file in files.values()), {}))


def _write_staged(rows: DataFrame, layout: TableLayout, staging: str) -> dict[str, _File]:
    """Write rows below the staging folder, and describe the files by what they hold."""
    schema, partition_by = layout.schema, layout.partition_by
    declared = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
    kinds = {field.name: field.dataType for field in schema.fields}
    again = [F.col(name).cast(kinds[name]).alias(before) for before, name in layout.also_named.items()]
    prepared = rows.select(*partition_by, *declared, *again)
    # One file per table partition. A shuffle of whole rows costs as much as writing them.
    shuffled = partition_by and layout.records > _ONE_TASK
    gathered = prepared.repartition(*partition_by) if shuffled else prepared.coalesce(1)
    # What Parquet files of coordinates hold is compared with what was reconciled (`check_written`).
    meant = Observation() if layout.file_format != "parquet" or not _has_coordinates(layout) else None
    observed = gathered.observe(meant, *sums(*row_hashes(schema, layout.hashed_by))) if meant else gathered
    writer = observed.sortWithinPartitions(*partition_by, *layout.order).write
    write_files(writer.partitionBy(*partition_by) if partition_by else writer, layout.file_format, staging)
    crash_point("revision_staged")
    partitioned = StructType([*schema.fields, *(StructField(name, StringType()) for name in partition_by)])
    staged = read_format(rows.sparkSession, layout.file_format, [staging], partitioned)
    files = _read_back(staged, layout)
    if meant:
        _check_kept(meant.get, files.values(), prepared, staged, layout)
    for path in files if layout.numbers else ():
        give_ids(rows.sparkSession, f"{staging}/{path}", layout.numbers)
    return files


def _partition(folder: str, interval: Interval) -> str:
    return "/".join(part for part in (folder, f"interval={interval.label}") if part)


def _by_folder(files: Mapping[str, _File]) -> dict[str, dict[str, _File]]:
    folders: dict[str, dict[str, _File]] = defaultdict(dict)
    for path, written in sorted(files.items()):
        folder, _, name = path.rpartition("/")
        folders[folder][name] = written
    return folders


def _move(
    staging: str, folder: str, files: Mapping[str, _File], layout: TableLayout, revision: str, interval: Interval
) -> BuiltRevision:
    """Move a table partition's files to their revision directory."""
    partition = _partition(folder, interval)
    location = lake.uri("tables", layout.table, partition, revision)
    noted: dict[str, Any] = {}
    for name, written in files.items():
        source = "/".join(part for part in (staging, folder, name) if part)
        noted[name] = {
            "rows": written.hashes[0],
            "bytes": lake.size(source),
            "sha256": lake.sha256(source),
            **written.noted,
        }
        lake.move(source, f"{location}/{name}")
    count, sum_1, sum_2 = (sum(each.hashes[n] for each in files.values()) for n in range(3))
    digest = content_hash(layout.schema.names, count, sum_1, sum_2, layout.hashed_by)
    return BuiltRevision(layout.table, partition, revision, location, count, digest, noted)


def _read_back(staged: DataFrame, layout: TableLayout) -> dict[str, _File]:
    """Return rows, hashes, records and bounds of each file that holds a row, by its path below the staging folder."""
    names = layout.schema.names
    bounded = {name: name for name in IDENTITY[:3] if name in names}
    if layout.event_time:
        bounded["event_time"] = layout.event_time
    by_file = _by_file(staged, layout, bounded)
    files = {}
    for row in by_file.collect():
        path = "/".join([*(f"{name}={row[name]}" for name in layout.partition_by), row[_FILE]])
        noted = {name: row[f"bounds_{name}"] for name in bounded if None not in row[f"bounds_{name}"]}
        if IDENTITY[3] in names:
            noted["records"] = row["records"]
        counted = {
            TopicPartition(part["kafka_topic"], part["kafka_partition"]): Counted(
                Fates(archived=part["records"]), hash_sums(part)
            )
            for part in (row["parts"] if _has_coordinates(layout) else ())
        }
        files[path] = _File(hash_sums(row), counted, noted)
    return files


def _has_coordinates(layout: TableLayout) -> bool:
    return {*TOPIC_PARTITION, IDENTITY[3]}.issubset(layout.schema.names)


def _by_file(staged: DataFrame, layout: TableLayout, bounded: Mapping[str, str]) -> DataFrame:
    """Return a row per file: rows, sum_1, sum_2, records, `bounds_<name>`, and parts, the same by topic partition."""
    file = [*layout.partition_by, _FILE]
    by = list(TOPIC_PARTITION) if _has_coordinates(layout) else []
    records = F.count_if(F.col(IDENTITY[3]) == 0) if IDENTITY[3] in layout.schema.names else F.lit(0).cast("bigint")
    # Not of grouping columns: to find the smallest text, Spark sorts all rows.
    bounds = [
        # An event time may be a date or a text.
        each(F.col(path).try_cast("timestamp") if name == "event_time" else path).alias(f"{each.__name__}_{name}")
        for name, path in bounded.items()
        if name not in by
        for each in (F.min, F.max)
    ]
    parts = (
        staged.withColumn(_FILE, staged.metadataColumn("_metadata")["file_name"])
        .groupBy(*file, *by)
        .agg(*sums(*row_hashes(layout.schema, layout.hashed_by)), records.alias("records"), *bounds)
    )
    totals = [F.sum(name).alias(name) for name in ("rows", "sum_1", "sum_2", "records")]
    whole = []
    for name in bounded:
        pair = [F.min(name), F.max(name)] if name in by else [F.min(f"min_{name}"), F.max(f"max_{name}")]
        if name == "event_time":
            # As text: Python supports fewer years than Spark.
            pair = [F.date_format(each, _TIME) for each in pair]
        whole.append(F.array(*pair).alias(f"bounds_{name}"))
    each_part = F.collect_list(F.struct(*by, "rows", "sum_1", "sum_2", "records")).alias("parts")
    return parts.groupBy(*file).agg(*totals, *whole, *([each_part] if by else []))


def _check_kept(
    meant: Mapping[str, Any], files: Iterable[_File], rows: DataFrame, staged: DataFrame, layout: TableLayout
) -> None:
    """Raise TidemarkError, naming the columns, unless the files hold the rows that were written."""
    wanted = [int(meant.get(name) or 0) for name in ("rows", "sum_1", "sum_2")]
    kept = [sum(numbers) for numbers in zip(*(file.hashes for file in files), strict=True)] or [0, 0, 0]
    if wanted == kept:
        return
    names = layout.schema.names
    hashes = [sums(*row_hashes(StructType([field])))[1].alias(field.name) for field in layout.schema.fields]
    before, after = (frame.agg(*hashes).collect()[0] for frame in (rows, staged))
    differing = [name for name in names if before[name] != after[name]]
    raise TidemarkError(
        f"{wanted[0]} rows were written as {layout.file_format}, {kept[0]} come back, not as they were in the columns "
        f"{', '.join(differing) or 'none'}; nothing was registered",
        remedy="run the interval again, and report this"
        if layout.file_format == "parquet"
        else 'declare file_format="parquet", and report this',
    )
