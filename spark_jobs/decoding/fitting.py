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

from collections.abc import Mapping
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
    values = [(field.name, _changes(row[field.name], field.dataType, file_format)) for field in columns.fields]
    values.append(("kafka_timestamp", _changes(F.col("kafka_timestamp"), TimestampType(), file_format)))
    named = [F.when(changes, F.lit(name)) for name, changes in values if changes is not None]
    return F.coalesce(*named)


def _changes(value: Column, kind: DataType, file_format: FileFormat) -> Column | None:
    """Return whether a value, or something inside it, would be changed; None where nothing of its type would."""
    if isinstance(kind, StructType):
        return _any(*(_changes(value[field.name], field.dataType, file_format) for field in kind.fields))
    if isinstance(kind, ArrayType):
        return _exists(value, kind.elementType, file_format)
    if isinstance(kind, MapType):
        keys = _exists(F.map_keys(value), kind.keyType, file_format)
        return _any(_long_keys(value, file_format), keys, _exists(F.map_values(value), kind.valueType, file_format))
    if isinstance(kind, StringType) and file_format in TEXT_FORMATS:
        not_utf8 = ~F.is_valid_utf8(value)
        return _known(not_utf8 | (value == CSV_NULL) if file_format == "csv" else not_utf8)
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        last = "9999-12-31" + ("" if isinstance(kind, DateType) else " 23:59:59.999999")
        outside = (value < F.lit("0001-01-01").cast(kind)) | (value > F.lit(last).cast(kind))
        if file_format == "orc" and isinstance(kind, TimestampType):
            second = (F.lit(text).cast(kind) for text in ("1969-12-31 23:59:59", "1970-01-01"))
            outside |= (value > next(second)) & (value < next(second))
        return _known(outside)
    return None


def _exists(values: Column, kind: DataType, file_format: FileFormat) -> Column | None:
    if _changes(F.lit(None), kind, file_format) is None:
        return None

    def changes(value: Column) -> Column:
        changed = _changes(value, kind, file_format)
        return F.lit(False) if changed is None else changed

    return _known(F.exists(values, changes))


def _long_keys(value: Column, file_format: FileFormat) -> Column | None:
    if file_format != "json":
        return None
    return _known(F.exists(F.map_keys(value), lambda key: F.octet_length(key) > _KEY_BYTES))


def _any(*conditions: Column | None) -> Column | None:
    known = [condition for condition in conditions if condition is not None]
    return reduce(Column.__or__, known) if known else None


def _known(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
