"""Footers and column statistics of the lake's Parquet files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from functools import partial, reduce
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.errors import one_line
from include.lake import object_store
from include.lake.files import filesystem, move, raises_unreachable, root
from include.offsets import OffsetRange
from include.times import utc


@raises_unreachable()
def read_footer(location: str) -> pq.FileMetaData:
    """Return the footer of a Parquet file: number of rows and column statistics, without reading data."""
    with open_parquet(location) as file:
        return file.metadata


@raises_unreachable()
def unreadable(location: str) -> str:
    """Read a Parquet file whole; return why that fails, empty for one that is read.

    By the checksums that Spark writes, into the file's pages and, on a disk, beside the file: what Spark refuses later
    is found now. Raise FileNotFoundError.
    """
    system, path = filesystem(location)
    with system.open_input_file(path) as file:
        try:
            for _ in pq.ParquetFile(file, page_checksum_verification=True).iter_batches():
                pass
        except (pa.ArrowException, OSError) as error:
            if object_store.unreachable_error(root(), str(error)):
                raise
            return one_line(str(error))
    return "" if _fits_checksums(path) else "its checksums, which Hadoop wrote beside it, are of other bytes"


_CRC_HEADER = struct.Struct(">4sI")
"""Of Hadoop's checksum file: its mark, and how many bytes each CRC-32 after it covers."""


def _fits_checksums(path: str) -> bool:
    file = Path(path)
    beside = file.with_name(f".{file.name}.crc")
    # None in a bucket, and none of files that were not written by Spark.
    if object_store.is_bucket_uri(root()) or not beside.exists():
        return True
    noted = beside.read_bytes()
    mark, covered = _CRC_HEADER.unpack_from(noted)
    if mark != b"crc\0":
        return True
    with file.open("rb") as content:
        read = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in iter(partial(content.read, covered), b""))
    return read == noted[_CRC_HEADER.size :]


_END = 8
"""Bytes after a footer: its length, and the format's magic bytes."""

_CHUNK = 1 << 22


@raises_unreachable()
def change_footer(location: str, changed: Callable[[bytes], bytes]) -> None:
    """Replace the footer of a Parquet file, as bytes; the bytes before it stay as they are. A crash changes nothing."""
    system, path = filesystem(location)
    temporary = path + ".tmp"
    with system.open_input_file(path) as file, system.open_output_stream(temporary) as copy:
        file.seek(file.size() - _END)
        length, mark = int.from_bytes(file.read(4), "little"), file.read(4)
        until = file.size() - _END - length
        file.seek(until)
        footer = changed(file.read(length))
        file.seek(0)
        while part := file.read(min(_CHUNK, until - file.tell())):
            copy.write(part)
        copy.write(footer + len(footer).to_bytes(4, "little") + mark)
    # Of any size, which the file system's own move is not in a bucket.
    move(f"{location}.tmp", location)


_PAGES_AT_ONCE = 1 << 20
"""Bytes read at once of a column whose pages are read one by one."""


@contextmanager
def open_parquet(location: str, *, page_by_page: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file inside the `with` block; only the footer and requested columns are read.

    With `page_by_page` batches of its rows are read in little memory, without it a row group's columns at once.
    """
    system, path = filesystem(location)
    options = {"pre_buffer": False, "buffer_size": _PAGES_AT_ONCE} if page_by_page else {}
    with raises_unreachable(), system.open_input_file(path) as file:
        yield pq.ParquetFile(file, **options)


_ROWS_AT_ONCE = 2_000

Bounds = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value wanted of columns, by their names."""


def bounds_of(offsets: OffsetRange) -> Bounds:
    """Return the bounds of the records at these offsets, in files with the coordinates of records."""
    topic, partition = offsets.topic_partition.topic, offsets.topic_partition.partition
    return {
        "kafka_offset": (offsets.from_offset, offsets.until_offset - 1),
        "kafka_partition": (partition, partition),
        "kafka_topic": (topic, topic),
    }


def rows_within(file: pq.ParquetFile, columns: Sequence[str], bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the rows within all bounds, some rows at a time; without bounds, of all rows.

    Of a row group without such a row, at most the bounded columns are read.
    """
    for number in range(file.num_row_groups):
        is_within = _is_within(file, number, bounds)
        if is_within is not None and not pc.any(is_within).as_py():
            continue
        begin = 0
        for rows in file.iter_batches(_ROWS_AT_ONCE, row_groups=[number], columns=list(columns)):
            mask = None if is_within is None else is_within.slice(begin, rows.num_rows)
            begin += rows.num_rows
            found = rows if mask is None else rows.filter(mask.combine_chunks())
            if found.num_rows:
                yield found


def has_times_from(location: str, column: str, moment: datetime, bounds: Bounds) -> bool:
    """Return whether a row within all bounds has a time at `moment` or later; often the footer alone tells."""
    with open_parquet(location) as file:
        known = time_bounds(file.metadata, column)
        if known is not None and known[1] < moment:
            return False
        found = rows_within(file, [column], bounds)
        return any(pc.any(pc.greater_equal(rows[column], pa.scalar(moment))).as_py() for rows in found)


def _is_within(file: pq.ParquetFile, number: int, bounds: Bounds) -> pa.ChunkedArray | None:
    """Return for each row of a row group whether it lies within the bounds; None without bounds."""
    for name, (low, high) in bounds.items():
        statistics = list(_statistics(file.metadata, name))[number]
        if statistics is not None and statistics.has_min_max and (statistics.max < low or statistics.min > high):
            return pa.chunked_array([pa.array([], pa.bool_())])
    if not bounds:
        return None
    read = file.read_row_group(number, columns=list(bounds))
    each = (
        pc.and_(pc.greater_equal(read[name], low), pc.less_equal(read[name], high))
        for name, (low, high) in bounds.items()
    )
    return reduce(pc.and_, each)


def column_bounds(metadata: pq.FileMetaData, column: str) -> tuple[object, object] | None:
    """Return minimum and maximum of a column (dotted path) from the footer; None where it does not bound every value.

    See `has_bounds`.
    """
    found = list(_statistics(metadata, column))
    known = [each for each in found if each is not None and each.has_min_max]
    if not known or not all(map(has_bounds, found)):
        return None
    return min(each.min for each in known), max(each.max for each in known)


def time_bounds(metadata: pq.FileMetaData, column: str) -> tuple[datetime, datetime] | None:
    """Return minimum and maximum of a column of times or dates in UTC; None without statistics, and for any other.

    A date is its midnight. Times that are texts have bounds of texts, which are no times.
    """
    low, high = column_bounds(metadata, column) or (None, None)
    first, last = _moment(low), _moment(high)
    return None if first is None or last is None else (first, last)


def counted_times(rows: pa.RecordBatch) -> pa.Table:
    """Return the rows with times in microseconds since 1970 and dates in days, also those within structs."""
    table = pa.Table.from_batches([rows])
    for times in (pa.timestamp("us"), pa.int64()):
        table = table.cast(pa.schema([(each.name, _counted(each.type, times)) for each in table.schema]), safe=False)
    return table


def _counted(kind: pa.DataType, times: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _counted(each.type, times)) for each in kind])
    if pa.types.is_timestamp(kind):
        return times
    return pa.int32() if pa.types.is_date32(kind) else kind


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python's values, with a text for what Python cannot hold, whether it is nested or not.

    A time outside the years 1 to 9999 is `… ms` since 1970, a date `… days`; bytes of a text that are not UTF-8 are
    escaped. Producers may write them, and files hold them.
    """
    columns = [_python_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, UnicodeDecodeError):
        return [_python_value(each) for each in column]
    return values


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, UnicodeDecodeError):
        return _text_or_parts(value)


def _text_or_parts(value: pa.Scalar) -> Any:
    """Return a value that Python cannot hold as a text, or what it consists of, each as Python holds it."""
    match value:
        case pa.StructScalar():
            return {name: _python_value(each) for name, each in value.items()}
        case pa.MapScalar():
            return [tuple(map(_python_value, each.values())) for each in value.values]
        case pa.ListScalar():
            return [_python_value(each) for each in value.values]
        case pa.TimestampScalar():
            return f"{value.cast(pa.timestamp('ms', value.type.tz), safe=False).value} ms"
        case pa.Date32Scalar():
            return f"{value.value} days"
    return value.as_buffer().to_pybytes().decode(errors="backslashreplace")


def columns_with(metadata: pq.FileMetaData, is_meant: Callable[[pq.Statistics | None], bool]) -> set[str]:
    """Return the columns (dotted paths) of which a row group has statistics that are meant; None if it has none."""
    chunks = (
        group.column(number)
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for number in range(group.num_columns)
    )
    return {each.path_in_schema for each in chunks if is_meant(each.statistics)}


def has_bounds(statistics: pq.Statistics | None) -> bool:
    """Return whether a row group's statistics bound all values of a column, and Python can hold the bounds.

    A writer leaves out the bounds of long texts. A bound that is NaN bounds nothing. Python cannot hold times and dates
    outside the years 1 to 9999, and texts that are not UTF-8.
    """
    if statistics is None or not statistics.has_min_max:
        return statistics is not None and statistics.has_null_count and statistics.num_values == 0
    try:
        bounds = statistics.min, statistics.max
    except (OverflowError, UnicodeDecodeError):
        return False
    return not any(isinstance(each, float) and isnan(each) for each in bounds)


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return utc(value)
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else None


def constant_value(metadata: pq.FileMetaData, column: str) -> object | None:
    """Return the one value that a column (dotted path) has in every row; None if the footer does not prove one."""
    values = set()
    for each in _statistics(metadata, column):
        if each is None or not each.has_min_max or each.null_count != 0 or each.min != each.max:
            return None
        values.add(each.min)
    return values.pop() if len(values) == 1 else None


def _statistics(metadata: pq.FileMetaData, column: str) -> Iterator[pq.Statistics | None]:
    """Yield a column's statistics per row group; None for a row group without them."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema == column:
                yield chunk.statistics
