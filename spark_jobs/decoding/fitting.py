"""Values that files of a format would change, although the format supports their type.

| format    | value                                                                              |
|-----------|------------------------------------------------------------------------------------|
| orc       | times in the second before 1970, which come back a second later                    |
| csv       | the text that stands for null                                                      |
| csv, json | text that is not UTF-8                                                             |
| json      | keys of maps that are longer than 50,000 bytes: such names cannot be parsed        |
| all three | times and dates outside of the years 1 to 9999                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from include.pipelines.spec.file_formats import CSV_NULL, TEXT_FORMATS, FileFormat

_KEY_BYTES = 50_000


def changed_column(row: Column | Mapping[str, Column], columns: StructType, file_format: FileFormat) -> Column:
    """Return the name of the first column, or `kafka_timestamp`, with such a value; null when there is none."""

    def changes(value: Column, kind: DataType) -> Column | None:
        return _is_changed(value, kind, file_format)

    of_kafka = found_within(F.col("kafka_timestamp"), TimestampType(), changes)
    found = (
        first_column(row, columns, changes),
        of_kafka if of_kafka is None else F.when(of_kafka, F.lit("kafka_timestamp")),
    )
    return F.coalesce(*(each for each in found if each is not None))


Asked = Callable[[Column, DataType], Column | None]
"""A condition on a value of a type; None where it is not asked of that type."""


def first_column(row: Column | Mapping[str, Column], columns: StructType, asked: Asked) -> Column | None:
    """Return the name of the first column for which, or inside of which, a condition holds; null without such a column.

    None where it is asked of no column.
    """
    values = [(field.name, found_within(row[field.name], field.dataType, asked)) for field in columns.fields]
    named = [F.when(condition, F.lit(name)) for name, condition in values if condition is not None]
    return F.coalesce(*named) if named else None


def found_within(value: Column, kind: DataType, asked: Asked) -> Column | None:
    """Return whether a condition holds for a value or something inside it; None where it is asked of nothing there."""
    match kind:
        case StructType():
            inside = [found_within(value[each.name], each.dataType, asked) for each in kind.fields]
        case ArrayType():
            inside = [_exists(value, kind.elementType, asked)]
        case MapType():
            keys, values = F.map_keys(value), F.map_values(value)
            inside = [_exists(keys, kind.keyType, asked), _exists(values, kind.valueType, asked)]
        case _:
            inside = []
    known = [condition for condition in (asked(value, kind), *inside) if condition is not None]
    return reduce(Column.__or__, map(_known, known)) if known else None


def _exists(values: Column, kind: DataType, asked: Asked) -> Column | None:
    if found_within(F.lit(None), kind, asked) is None:
        return None

    def found(value: Column) -> Column:
        condition = found_within(value, kind, asked)
        return F.lit(False) if condition is None else condition

    return F.exists(values, found)


def is_not_utf8(value: Column, kind: DataType) -> Column | None:
    """Return whether a text is not UTF-8; None for any other type."""
    return ~F.is_valid_utf8(value) if isinstance(kind, StringType) else None


def repeats_a_key(value: Column, kind: DataType) -> Column | None:
    """Return whether a map has two entries of one key; None for any other type."""
    return F.size(F.array_distinct(F.map_keys(value))) < F.size(value) if isinstance(kind, MapType) else None


def _is_changed(value: Column, kind: DataType, file_format: FileFormat) -> Column | None:
    if isinstance(kind, MapType) and file_format == "json":
        return F.exists(F.map_keys(value), lambda key: F.octet_length(key) > _KEY_BYTES)
    if isinstance(kind, StringType) and file_format in TEXT_FORMATS:
        not_utf8 = ~F.is_valid_utf8(value)
        return not_utf8 | (value == CSV_NULL) if file_format == "csv" else not_utf8
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        last = "9999-12-31" + ("" if isinstance(kind, DateType) else " 23:59:59.999999")
        outside = (value < F.lit("0001-01-01").cast(kind)) | (value > F.lit(last).cast(kind))
        if file_format == "orc" and isinstance(kind, TimestampType):
            second = (F.lit(text).cast(kind) for text in ("1969-12-31 23:59:59", "1970-01-01"))
            outside |= (value > next(second)) & (value < next(second))
        return outside
    return None


def _known(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
