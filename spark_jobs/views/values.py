"""The rows of a speed view in the form for all sinks: keys and values as JSON, and back to columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.pipelines.spec import AdditiveView
from spark_jobs.spark.schemas import struct_of

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss'Z'", "ignoreNullFields": "false"}


def key_json(view: AdditiveView) -> Column:
    """Return the key of a row of the view as JSON: keys sorted, also inside the window."""
    columns = [
        F.struct(F.col(name)["end"].alias("end"), F.col(name)["start"].alias("start")).alias(name)
        if name == view.window
        else F.col(name)
        for name in sorted(view.key)
    ]
    return F.to_json(F.struct(*columns), _TIMES)


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
