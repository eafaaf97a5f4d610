"""A stream of the lines in files that the ledger has noted: every line once, in order.

Spark's own sources know nothing of the ledger: its file source skips old files silently and does not count lines, its
socket source forgets what it received and opens a connection for each query.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from include import lake
from include.ledger.patience import SHARE, tried_again
from include.ledger.streams import lines
from include.ledger.streams.lines import NotedFile
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.streams.line_feeds import check_unchanged
from spark_jobs.decoding.records import decode
from spark_jobs.spark.schemas import struct_of

T = TypeVar("T")

FORMAT = "tidemark_lines"

MOST_BYTES = 64 * 1024 * 1024
"""The most that a micro-batch reads, unless its first file is larger."""

LINE_COLUMNS = "source_name STRING, source_line BIGINT, source_time TIMESTAMP, source_element INT"
"""Columns of a row of lines in place of Kafka's: the file or connection, the number of the line in it, counted from 1,
its arrival, and the position of the row inside its message."""

LONGEST = 64 * 1024 * 1024
"""How many bytes of a line are read, if its decoder does not take more: an executor has each line in memory whole."""

_BYTES_OF_A_TASK = 4 * 1024 * 1024
_ROWS_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 * 1024 * 1024
_FILE = "file"
_SCHEMA = pa.schema(
    [("name", pa.string()), ("line", pa.int64()), ("arrived_at", pa.timestamp("us", tz="UTC")), ("value", pa.binary())]
)


def read_lines(spark: SparkSession, pipeline: Pipeline, since: int) -> DataFrame:
    """Return the pipeline's lines as a stream that begins after file `since`.

    Columns: those of a record without Kafka's coordinates (key and headers are null), and name and line.
    """
    spark.dataSource.register(LineSourceReader)
    longest = max(LONGEST, pipeline.decoder.max_bytes)
    reader = spark.readStream.format(FORMAT).options(pipeline=pipeline.name, since=str(since), longest=str(longest))
    return reader.load().select(
        F.lit(None).cast("BINARY").alias("key"),
        "value",
        F.lit(None).cast("STRING").alias("topic"),
        F.lit(None).cast("INT").alias("partition"),
        F.lit(None).cast("BIGINT").alias("offset"),
        F.col("arrived_at").alias("timestamp"),
        F.lit(None).cast("ARRAY<STRUCT<key: STRING, value: BINARY>>").alias("headers"),
        "name",
        "line",
    )


def decode_lines(pipeline: Pipeline, records: DataFrame) -> DataFrame:
    """Decode each line once, like a record. Columns: those of `decode`, with `LINE_COLUMNS` in place of Kafka's."""
    # Decoding takes a line's file and number as a record's coordinates; the columns are renamed afterwards.
    carried = records.withColumns({"topic": F.col("name"), "offset": F.col("line")})
    return (
        decode(pipeline, carried)
        .drop("kafka_partition")
        .withColumnsRenamed(
            {
                "kafka_topic": "source_name",
                "kafka_offset": "source_line",
                "kafka_timestamp": "source_time",
                "kafka_element": "source_element",
            }
        )
    )


def line_archive_schema(pipeline: Pipeline) -> StructType:
    """Return the columns of a pipeline's archive of lines."""
    return struct_of(f"{pipeline.archive_columns}, {LINE_COLUMNS}")


class LineSourceReader(DataSource):
    """Options: pipeline, since, longest."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of the source."""
        return "name STRING, line BIGINT, arrived_at TIMESTAMP, value BINARY"

    def streamReader(self, schema: StructType) -> LineReader:  # noqa: N802
        """Return the reader; Spark calls this in a process of its own."""
        return LineReader(self.options["pipeline"], int(self.options["since"]), int(self.options["longest"]))


@dataclass
class LinePart(InputPartition):
    """Files that one task reads, one after the other."""

    files: tuple[NotedFile, ...]


class LineReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"file": N}`: every file of the ledger up to and including N was read."""

    def __init__(self, pipeline: str, since: int, longest: int = LONGEST) -> None:
        self._pipeline = pipeline
        self._since = since
        self._longest = longest
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        return {_FILE: self._since}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most that a micro-batch reads."""
        return ReadMaxBytes(MOST_BYTES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is noted now, then end."""
        self._target = self._noted_until(0, None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far the next micro-batch reads."""
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        assert most is not None or isinstance(limit, ReadAllAvailable)
        until = self._noted_until(start[_FILE], most)
        return {_FILE: until if self._target is None else max(start[_FILE], min(until, self._target))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LinePart]:
        """Return the files between two offsets; small ones share a task."""
        parts: list[list[NotedFile]] = []
        room = 0
        for file in _patiently(lambda: lines.files_between(self._pipeline, start[_FILE], end[_FILE])):
            if not parts or file.bytes > room:
                parts.append([])
                room = _BYTES_OF_A_TASK
            parts[-1].append(file)
            room -= file.bytes
        return [LinePart(tuple(part)) for part in parts]

    def _noted_until(self, after: int, most_bytes: int | None) -> int:
        return _patiently(lambda: lines.noted_until(self._pipeline, after, most_bytes))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the files' lines without line ends. Raises TidemarkError when a file is not as it was noted."""
        assert isinstance(partition, LinePart)
        for file in partition.files:
            check_unchanged(file, self._pipeline)
            yield from read_file(file, self._longest)
            check_unchanged(file, self._pipeline)


def _patiently(step: Callable[[], T]) -> T:
    # Spark runs the reader in a process of its own, which waits for the ledger as long as the stream's driver.
    return tried_again(step, seconds=SHARE * settings().lease_seconds)


def read_file(file: NotedFile, longest: int = LONGEST) -> Iterator[pa.RecordBatch]:
    """Return a file's lines: name, line, arrived_at, value. Line feed ends a line, with or without carriage return.

    Of a line of more than `longest` bytes the first `longest` + 1 are returned, which are too many for its decoder.
    """
    system, path = lake.filesystem(file.location)
    values: list[bytes] = []
    number, size = file.first_line, 0
    with system.open_input_stream(path) as source:
        for line in _lines(io.BufferedReader(source), longest + len(b"\r\n")):
            values.append(line.removesuffix(b"\n").removesuffix(b"\r")[: longest + 1])
            size += len(line)
            if len(values) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield _batch(file, number, values)
                number, size, values = number + len(values), 0, []
    yield _batch(file, number, values)


def _lines(source: io.BufferedReader, most: int) -> Iterator[bytes]:
    """Yield each line with its end, or the first `most` bytes of a longer one, whose others are passed over."""
    while line := source.readline(most):
        rest = line
        while len(rest) == most and not rest.endswith(b"\n"):
            rest = source.readline(most)
        yield line


def _batch(file: NotedFile, first: int, values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    columns = [[file.source_name] * count, range(first, first + count), [file.modified_at] * count, values]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )
