"""A folder of the landing: decoded records are written to it by fate and date, and read back from its files.

Earlier code named folders `outcome=…`; their files are read only by the paths that the ledger recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

from include import lake
from include.ledger.archive.landing_files import LandingFile
from include.offsets import Fate, TopicPartition
from include.pipelines.spec import Pipeline


def write_landing(pipeline: Pipeline, decoded: DataFrame, folder: str) -> None:
    """Write decoded records to a folder by fate and date, replacing whatever was there."""
    lake.delete(folder)
    plain = {f"parquet.enable.dictionary#{path}": "false" for path in _seldom_repeating(decoded.schema)}
    # Appended, because in a bucket a failed write may leave folders without a file.
    decoded.write.mode("append").options(**plain, **_statistics(pipeline)).partitionBy("fate", "date").parquet(folder)


_PLACES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_element")
"""Columns that say where a row is from. Those of lines are read whole, for every row."""


def _statistics(pipeline: Pipeline) -> dict[str, str]:
    """Return the options by which only those columns have bounds in the footer whose bounds are read from there.

    Parquet compares each value of the others with two more, which takes a sixth of the time of writing them.
    """
    watched = [report.up for report in pipeline.watched_reports]
    bounded = (*_PLACES, pipeline.archive.event_time, *watched)
    return {
        "parquet.column.statistics.enabled": "false",
        **{f"parquet.column.statistics.enabled#{path}": "true" for path in bounded},
        # Which sizes the values of a page have: nobody reads them.
        "parquet.size.statistics.enabled": "false",
    }


def _seldom_repeating(schema: StructType, parent: str = "") -> Iterator[str]:
    """Yield the paths of columns whose values seldom repeat: offsets, times, and measurements.

    For these Parquet would build a dictionary, find after a page that it does not help, and encode the values again,
    which takes a tenth of landing's time.
    """
    for each in schema.fields:
        path = f"{parent}{each.name}"
        if isinstance(each.dataType, StructType):
            yield from _seldom_repeating(each.dataType, f"{path}.")
        elif path == "kafka_offset" or isinstance(each.dataType, DoubleType | FloatType | TimestampType):
            yield path


def read_back(pipeline: Pipeline, folder: str) -> Iterator[tuple[LandingFile, pq.ParquetFile]]:
    """Yield each file that the folder really holds, with its rows and event times, opened."""
    for listed in lake.list_files(folder):
        location = f"{folder}/{listed.name}"
        fate = listed.name.split("/", 1)[0].removeprefix("fate=")
        with lake.open_parquet(location) as parquet:
            times = lake.time_bounds(parquet.metadata, pipeline.archive.event_time)
            rows = parquet.metadata.num_rows
            yield LandingFile(Fate(fate), lake.below_lake(location), rows, listed.bytes, times), parquet


def records_of(parquet: pq.ParquetFile) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the number of records in a landing file by topic partition; a record is counted by its first row.

    Spark reads each topic partition in a task of its own, so for most files the footer is enough.
    """
    names = ["kafka_topic", "kafka_partition", "kafka_element"]
    topic, partition, element = (lake.constant_value(parquet.metadata, name) for name in names)
    if isinstance(topic, str) and isinstance(partition, int) and element == 0:
        yield TopicPartition(topic, partition), parquet.metadata.num_rows
        return
    table = parquet.read(columns=names)
    firsts = table.filter(pc.equal(table["kafka_element"], 0))
    for group in firsts.group_by(names[:2]).aggregate([([], "count_all")]).to_pylist():
        yield TopicPartition(group["kafka_topic"], group["kafka_partition"]), group["count_all"]


def move_quarantined(
    pipeline: Pipeline, files: Sequence[LandingFile], name: str, columns: list[str]
) -> list[LandingFile]:
    """Rewrite a batch's quarantined records, with only these columns, into one file of `quarantine/<pipeline>/`."""
    kept = [file for file in files if file.fate != Fate.QUARANTINED]
    paths = sorted(file.path for file in files if file.fate == Fate.QUARANTINED)
    if not paths:
        return kept
    target = lake.uri("quarantine", pipeline.name, f"{name}.parquet")
    _merge(paths, target, columns)
    for path in paths:
        lake.delete_file(lake.uri(path))
    rows = sum(file.rows for file in files if file.fate == Fate.QUARANTINED)
    return [*kept, LandingFile(Fate.QUARANTINED, lake.below_lake(target), rows, lake.size(target))]


def reasons_of(files: Sequence[LandingFile]) -> dict[str, int]:
    """Return the number of records in the batch's quarantine file by reason code."""
    counted: Counter[str] = Counter()
    for file in files:
        if file.fate == Fate.QUARANTINED:
            with lake.open_parquet(lake.uri(file.path)) as parquet:
                counted.update(parquet.read(columns=["reason"])["reason"].to_pylist())
    return dict(counted)


def _merge(paths: Sequence[str], target: str, columns: list[str]) -> None:
    """Write these columns of several files (paths below the lake) to one file; no row group is of two of them."""
    lake.make_parents(target)
    folder, name = target.rsplit("/", 1)
    # A name beginning with a dot is invisible to every reader until it is complete.
    temporary = f"{folder}/.{name}"
    system, path = lake.filesystem(temporary)
    with ExitStack() as opened:
        for each in paths:
            with lake.open_parquet(lake.uri(each), page_by_page=True) as parquet:
                if each == paths[0]:
                    known = parquet.schema_arrow
                    schema = pa.schema([known.field(name) for name in columns], known.metadata)
                    writer = opened.enter_context(pq.ParquetWriter(path, schema, filesystem=system))
                # A batch may hold more bad records than fit into memory.
                lake.write_row_groups(writer, lake.portions_of(parquet, columns))
    lake.move(temporary, target)
