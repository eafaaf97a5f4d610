"""Row rules: whether a row of the archive breaks one, and the reason and detail by which its record is quarantined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, FloatType, MapType, StringType, StructType

from include.lake import SAFE_VALUE
from include.pipelines.spec import (
    EVENT_TIMES,
    Between,
    EventTimeWithin,
    Fits,
    MaxBytes,
    Pipeline,
    Required,
    SafeValue,
    UserDefined,
)
from include.pipelines.spec.archive import Rule
from include.pipelines.spec.file_formats import FileFormat
from spark_jobs.decoding.fitting import changed_column, first_column, is_not_utf8, repeats_a_key
from spark_jobs.decoding.reasons import because
from spark_jobs.spark.schemas import struct_of

Row = Column | Mapping[str, Column]
"""A row: a struct, or its fields by name."""


def field_at(row: Row, path: str) -> Column:
    """Return the field at a dotted path of a row."""
    first, *others = path.split(".")
    return reduce(lambda value, part: value[part], others, row[first])


def violation(pipeline: Pipeline, row: Row) -> Column:
    """Return the first rule that a row breaks, as struct<reason, detail>; null when it keeps them all.

    The last rules are declared by none, and hold for all: no map repeats a key, texts that may be made of a record's
    bytes are UTF-8, and the event time lies in `EVENT_TIMES`.
    """
    judged = [_judged(pipeline, row, rule) for rule in pipeline.archive.all_rules]
    judged += _held_by_all(pipeline, row)
    first, *others = judged
    return reduce(lambda earlier, rule: earlier.when(*rule), others, F.when(*first))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Judged = tuple[Column, Column]
"""Whether a row breaks a rule (null means no), and the failure's reason and detail."""


def _judged(pipeline: Pipeline, row: Row, rule: Rule) -> _Judged:
    columns = struct_of(pipeline.archive.columns)
    match rule:
        case Required(path):
            return _missing(row, path, columns)
        case SafeValue(path):
            return _unsafe(row, path)
        case MaxBytes(path, limit):
            return _too_long(row, path, limit)
        case Fits(file_format):
            return _unfit(row, columns, file_format)
        case Between(path, low, high):
            return _out_of_range(row, path, low, high, _kind_at(columns, path))
        case EventTimeWithin():
            return _out_of_time(field_at(row, pipeline.archive.event_time), rule)


def _held_by_all(pipeline: Pipeline, row: Row) -> Iterator[_Judged]:
    columns = struct_of(pipeline.archive.columns)
    # Spark's parser of JSON keeps every entry. Other readers of the files refuse a map with a key twice.
    if (repeating := first_column(row, columns, repeats_a_key)) is not None:
        words = F.concat(repeating, F.lit(" has a map with a key twice"))
        yield repeating.isNotNull(), because("value_does_not_fit", words)
    # Decoders check the texts of a message. In JSON, two texts that are not UTF-8 would become one.
    takes_bytes = pipeline.archive.takes_record or isinstance(pipeline.decoder, UserDefined)
    if takes_bytes and (raw := first_column(row, columns, is_not_utf8)) is not None:
        yield raw.isNotNull(), because("not_utf8", F.concat(raw, F.lit(" has a text that is not UTF-8")))
    yield _out_of_years(field_at(row, pipeline.archive.event_time))


def _kind_at(columns: StructType, path: str) -> DataType:
    """Return the type of the field at a dotted path, which may lead into maps."""
    kind: DataType = columns
    for part in path.split("."):
        assert isinstance(kind, StructType | MapType)
        kind = kind.valueType if isinstance(kind, MapType) else kind[part].dataType
    return kind


def _missing(row: Row, path: str, columns: StructType) -> _Judged:
    kind = _kind_at(columns, path)
    value = field_at(row, path)
    is_missing = F.coalesce(value, F.lit("")) == "" if isinstance(kind, StringType) else value.isNull()
    return is_missing, because("required_missing", f"{path} is missing")


def _unsafe(row: Row, path: str) -> _Judged:
    value = field_at(row, path).cast("string")
    is_unsafe = ~F.coalesce(value.rlike(rf"\A(?:{SAFE_VALUE})\z"), F.lit(False))
    shown = F.regexp_replace(F.substring(F.coalesce(value, F.lit("null")), 1, 100), "[^ -~]", "?")
    words = F.lit(f"{path} is not safe as the name of a folder: ")
    return is_unsafe, because("unsafe_partition_value", F.concat(words, shown))


def _too_long(row: Row, path: str, limit: int) -> _Judged:
    size = F.octet_length(field_at(row, path))
    words = F.concat(F.lit(f"{path} has "), size.cast("string"), F.lit(f" bytes, the limit is {limit}"))
    return size > limit, because("value_too_long", words)


def _unfit(row: Row, columns: StructType, file_format: FileFormat) -> _Judged:
    column = changed_column(row, columns, file_format)
    words = F.lit(f" has a value that a file of the format {file_format} does not hold")
    return column.isNotNull(), because("value_does_not_fit", F.concat(column, words))


_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def _out_of_range(row: Row, path: str, low: float, high: float, kind: DataType) -> _Judged:
    value = field_at(row, path)
    # In full: rounded, the detail could name a value as outside of bounds that hold it.
    first, last = (str(bound).removesuffix(".0") for bound in (low, high))
    words = F.concat(F.lit(f"{path} is not within {first} and {last}: "), value.cast("string"))
    bounds = [F.lit(low), F.lit(high)]
    if isinstance(kind, FloatType):
        # As the column holds them: the FLOAT of 0.1 is greater than the DOUBLE.
        held = (max(-_LARGEST_FLOAT, min(_LARGEST_FLOAT, bound)) for bound in (low, high))
        bounds = [F.lit(bound).cast(kind) for bound in held]
    # NaN is greater than every number.
    return (value < bounds[0]) | (value > bounds[1]), because("out_of_range", words)


def _out_of_years(event_time: Column) -> _Judged:
    first, last = (bound // timedelta(microseconds=1) for bound in (each - _EPOCH for each in EVENT_TIMES))
    micros = _micros(event_time)
    words = F.concat(event_time.cast("string"), F.lit(" is not within the years 2 to 9998"))
    return (micros < first) | (micros >= last), because("event_time_out_of_bounds", words)


def _out_of_time(event_time: Column, rule: EventTimeWithin) -> _Judged:
    # In microseconds: Spark adds an interval to a timestamp by way of the calendar.
    behind, ahead = (F.lit(bound // timedelta(microseconds=1)) for bound in rule.bounds)
    arrival = F.col("kafka_timestamp")
    first, last = F.unix_micros(arrival) - behind, F.unix_micros(arrival) + ahead
    micros = _micros(event_time)
    is_outside = (micros < first) | (micros > last)
    words = f" is not within {rule.behind} before and {rule.ahead} after the record's timestamp "
    detail = F.concat(event_time.cast("string"), F.lit(words), arrival.cast("string"))
    return is_outside, because("event_time_out_of_bounds", detail)


def _micros(event_time: Column) -> Column:
    # A pipeline without windows may declare a date, or a text, as its event time.
    return F.unix_micros(event_time.try_cast("timestamp"))
