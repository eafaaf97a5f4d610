"""The rows of an output: committed archive rows, or what its transform makes of them, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.errors import UsageError
from include.ledger.archive import row_outputs
from include.ledger.archive.row_outputs import Unsent
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY, KAFKA_COLUMNS, Pipeline, Rows
from spark_jobs.archive.files import within
from spark_jobs.archive.reader import read_archived, read_replayed
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.records import load_references, transform
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.thrown import refused_by_spark

AS_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    # By default Spark cuts these to milliseconds.
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Options by which values are written as JSON."""


def output_schema(pipeline: Pipeline, output: Rows) -> StructType:
    """Return the columns of an output's rows: its own (the archive's with the timestamp), then the coordinates."""
    own = output.columns or f"{pipeline.archive_columns}, kafka_timestamp TIMESTAMP"
    kafka = struct_of(KAFKA_COLUMNS)
    return StructType([*struct_of(own).fields, *(kafka[name] for name in IDENTITY)])


def read_unsent(
    spark: SparkSession, pipeline: Pipeline, unsent: Unsent, ranges: Sequence[OffsetRange] | None = None
) -> DataFrame:
    """Return the archive rows that an output sends next, or those in some of `ranges_of`. Columns: the archive's."""
    if unsent.is_replay:
        rows = read_replayed(spark, pipeline, unsent.paths)
        rows = rows if ranges is None else rows.where(within(ranges))
    else:
        rows = read_archived(spark, pipeline, unsent.ranges if ranges is None else ranges)
    return rows.select(*archive_schema(pipeline).names, "event_time")


def ranges_of(unsent: Unsent, archived: DataFrame) -> Sequence[OffsetRange]:
    """Return the offset ranges that the rows lie in: in a replay, from a topic partition's first to its last."""
    if not unsent.is_replay:
        return unsent.ranges
    at = archived.groupBy("kafka_topic", "kafka_partition")
    spans = at.agg(F.min("kafka_offset"), F.max("kafka_offset")).collect()
    return sorted(
        OffsetRange(TopicPartition(topic, partition), first, last + 1) for topic, partition, first, last in spans
    )


def output_rows(spark: SparkSession, pipeline: Pipeline, output: Rows, rows: DataFrame) -> DataFrame:
    """Return what the output sends of archive rows. Columns: `output_schema`.

    Raises UsageError when the transform returns other columns than the output declares, or asks for one that is not
    there.
    """
    schema = output_schema(pipeline, output)
    sent = rows
    if output.rows:
        references = load_references(spark, pipeline)
        with refused_by_spark(pipeline, output.rows):
            sent = transform(pipeline, output.rows)(rows, references)
    types = {field.name: field.dataType.simpleString() for field in sent.schema.fields}
    declared = {field.name: field.dataType.simpleString() for field in schema.fields}
    if wrong := next((name for name, kind in declared.items() if types.get(name) != kind), ""):
        returned = f"{wrong} as {types[wrong]}" if wrong in types else f"no column {wrong}"
        raise UsageError(
            f"the transform {output.rows} of the output {output.name} returns {returned}",
            remedy=f"let it return {wrong} as {declared[wrong]}",
            pipeline=pipeline.name,
        )
    return sent.select(*schema.names)


def in_order(rows: DataFrame, unsent: Unsent) -> DataFrame:
    """Return what is sent in the order of the log, topic partition by topic partition, in slices.

    A slice is a shuffle partition of at most `row_outputs.MOST_ROWS` records. PySpark's `toLocalIterator` brings all of
    it to the driver, and then the next one. The shuffle makes all rows first: a transform that throws does so before
    anything is sent, and reads its input once.
    """
    most = row_outputs.MOST_ROWS
    if unsent.rows <= most:
        sliced = rows.coalesce(1)
    elif unsent.is_replay:
        # Its offsets may lie far apart. Spark divides by a sample, so a slice may be larger than the others.
        sliced = rows.repartitionByRange(ceil(2 * unsent.rows / most), *IDENTITY)
    else:
        offsets = sum(map(len, unsent.ranges))
        # A record may have several rows, or none.
        each = max(1, min(most, offsets * most // unsent.rows))
        number = F.floor(_offsets_before(unsent.ranges) / each).cast("int")
        sliced = rows.repartitionById(ceil(offsets / each), number)
    return sliced.sortWithinPartitions(*IDENTITY)


def each_in_order(pipeline: Pipeline, output: Rows, rows: DataFrame, unsent: Unsent) -> Iterator[Row]:
    """Yield what is sent, as `in_order` has it; `rows` has the coordinates, and any other columns.

    Raises UsageError for two rows of the same coordinates, by which readers and tables tell rows apart.
    """
    before: list[object] = []
    for row in in_order(rows, unsent).toLocalIterator():
        if before == (before := [row[name] for name in IDENTITY]):
            topic, partition, offset, element = before
            raise UsageError(
                f"the transform {output.rows} of the output {output.name} returns more than one row for "
                f"{topic}-{partition} offset {offset} row {element}",
                remedy="let it return at most one, or one output for each",
                pipeline=pipeline.name,
            )
        yield row


def _offsets_before(ranges: Sequence[OffsetRange]) -> Column:
    """Return how many offsets of the ranges come before a row's."""
    counted, before = [], 0
    for each in sorted(ranges):
        counted.append(F.when(within([each]), F.col("kafka_offset") - each.from_offset + before))
        before += len(each)
    return F.coalesce(*counted, F.lit(0))
