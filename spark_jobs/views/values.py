"""The rows of a speed view in the form for all sinks: keys and values as JSON, and back to columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType, TimestampNTZType, TimestampType

from include.pipelines.spec import AdditiveView
from spark_jobs.spark.schemas import struct_of

_SECONDS = "yyyy-MM-dd'T'HH:mm:ss"
_TIMES = {"timestampFormat": f"{_SECONDS}'Z'", "ignoreNullFields": "false"}


def key_json(view: AdditiveView) -> Column:
    """Return the key of a row of the view as JSON: keys sorted, also inside the window.

    Times have microseconds where they are not in whole seconds, so that no two keys are written as one.
    """
    declared = struct_of(view.columns)
    columns = [
        F.struct(F.col(name)["end"].alias("end"), F.col(name)["start"].alias("start")).alias(name)
        if name == view.window
        else _exact(F.col(name), declared[name].dataType).alias(name)
        for name in sorted(view.key)
    ]
    return F.to_json(F.struct(*columns), _TIMES)


def _exact(value: Column, kind: DataType) -> Column:
    """Return a value with its times as texts, which `to_json` would cut."""
    if not _has_times(kind):
        return value
    match kind:
        case StructType():
            fields = (_exact(value[each.name], each.dataType).alias(each.name) for each in kind)
            return F.when(value.isNotNull(), F.struct(*fields))
        case ArrayType():
            return F.transform(value, lambda each: _exact(each, kind.elementType))
        case TimestampNTZType():
            # Without a zone, Spark's own format has milliseconds.
            return _time(value.cast(kind), "millisecond", f"{_SECONDS}.SSS", f"{_SECONDS}.SSSSSS")
    return _time(value.cast(kind), "second", f"{_SECONDS}'Z'", f"{_SECONDS}.SSSSSS'Z'")


def _has_times(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_times(each.dataType) for each in kind)
        case ArrayType():
            return _has_times(kind.elementType)
    return isinstance(kind, TimestampType | TimestampNTZType)


def _time(value: Column, unit: str, whole: str, exact: str) -> Column:
    is_whole = F.date_trunc(unit, value) == value
    return F.when(is_whole, F.date_format(value, whole)).otherwise(F.date_format(value, exact))


def value_json(view: AdditiveView, version: int) -> Column:
    """Return the measures of a row of the view as JSON, keys sorted."""
    measures: list[Column] = [F.col(name) for name in view.measures]
    named = sorted([*zip(view.measures, measures, strict=True), ("version", F.lit(version).alias("version"))])
    return F.to_json(F.struct(*(column for _, column in named)), _TIMES)


def key_columns(view: AdditiveView, key: Column) -> list[Column]:
    """Return the view's key columns out of a key that `key_json` made."""
    declared = struct_of(view.columns)
    parsed = F.from_json(key, StructType([declared[name] for name in view.key]))
    return [parsed[name].alias(name) for name in view.key]
