"""Values of a reference's lines: Spark reads one that does not fit its column as null, or as another value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)

from include.pipelines.spec import Reference
from include.pipelines.spec.references import wrong_line
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.schemas import struct_of

_ZEROS = re.compile(r"[+-]?0\d")
"""Zeros before a number, which it would lose: more likely digits of a code."""

_DATE = re.compile(r"[+-]?\d{4,}-\d{1,2}-\d{1,2}")

_TIME = re.compile(rf"{_DATE.pattern}(?:[ T]\d(?!.*\.\d{{7}}).*)?")
"""A time with its date: Spark takes today's for one without. Its seconds have at most six decimals."""


def check_values(
    spark: SparkSession, pipeline: str, name: str, reference: Reference, lines: Sequence[tuple[int, str]]
) -> None:
    """Raise UsageError for the first value that its line does not give back as its column is declared."""
    fields = struct_of(reference.columns).fields
    judges = [_judge(field.dataType) for field in fields]
    if not any(judges):
        return
    texts = ", ".join(f"`{field.name.replace('`', '``')}` STRING" for field in fields)
    read = frame_of(spark, lines, "number BIGINT, line STRING").select(
        "number", F.from_csv("line", texts).alias("text"), F.from_csv("line", reference.columns).alias("typed")
    )
    values = (F.struct(F.col("text")[f.name], F.col("typed")[f.name].cast("string")) for f in fields)
    for number, *pairs in read.select("number", *values).collect():
        for field, is_kept, (text, typed) in zip(fields, judges, pairs, strict=True):
            if is_kept and text is not None and (typed is None or not is_kept(text, typed)):
                what = f"a value of the column {field.name} that is not {field.dataType.simpleString().upper()}"
                raise wrong_line(name, reference, number, what, pipeline)


def _judge(kind: DataType) -> Callable[[str, str], bool] | None:
    """Return what says whether a text is kept by the value that Spark reads from it, as text; None for texts."""
    match kind:
        case IntegralType():
            return lambda text, typed: text == typed
        case DecimalType():
            return _is_kept_decimal
        case FractionalType():
            return _is_kept_float
        case DateType():
            return lambda text, _: _DATE.fullmatch(text) is not None
        case TimestampType() | TimestampNTZType():
            return lambda text, _: _TIME.fullmatch(text) is not None
    return None if kind.typeName() == "string" else lambda *_: True


def _is_kept_decimal(text: str, typed: str) -> bool:
    try:
        return not _ZEROS.match(text) and Decimal(text) == Decimal(typed)
    except InvalidOperation:
        return False


def _is_kept_float(text: str, typed: str) -> bool:
    """Return whether a text is a number that is kept as far as the type has digits."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return False
    return not _ZEROS.match(text) and math.isinf(float(typed)) == number.is_infinite()
