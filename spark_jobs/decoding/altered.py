"""Texts that Spark's parsers read as another value, without a complaint.

| type          | text                                 | Spark reads                         |
|---------------|--------------------------------------|-------------------------------------|
| TIMESTAMP     | a time without a date, `12:30`       | that time of the day on which it is |
| DECIMAL(p, s) | more than s digits after the point   | the number rounded                  |
| DOUBLE, FLOAT | a number beyond their range, `1E400` | Infinity                            |

A value that may hold a text of the first two kinds, by a quick look at it, is parsed a second time with types that
tell: a timestamp as text, a decimal with more digits. Infinity is seen in the value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.decoding.reasons import because

Format = Literal["json", "csv"]

_MOST_DIGITS = 38
"""Of Spark's decimals."""

_BLANK = r"[\x00-\x20\x7f]"
"""What Spark trims from a time."""

_TIME = r"(?:T\d|\d{1,2}:)"
"""How Spark's times without a date begin."""

_TIME_ALONE = rf"\A{_BLANK}*+{_TIME}"

# The first character is looked at beforehand: most strings are left at once. Any may be written as an escape.
_JSON_TIME = rf'"(?=[ \x7fT\d\\]){_BLANK}*+(?:T\d|\d{{1,2}}:|(?:T|\d{{0,2}})\\(?:u00[0-7]|[bfnrt]))'

_NUMBER = r"\A\s*[+-]?[.\d]"


def may_alter(declared: StructType, text: Column, form: Format, separator: str = "") -> Column | None:
    """Return whether a text may hold one that is read as another value; None when no type of its schema could."""
    kinds = list(_leaves(declared))
    looks = []
    if any(isinstance(kind, TimestampType) for kind in kinds):
        looks.append(_JSON_TIME if form == "json" else rf"(?:\A|{_escaped(separator)}|\"){_BLANK}*+{_TIME}")
    if scales := [kind.scale for kind in kinds if isinstance(kind, DecimalType)]:
        looks.append(rf"\.\d{{{min(scales)}}}\d*[1-9]|[eE]-\d+" + (r'"?\s*[,}\]]|\\u00[2-6]' if form == "json" else ""))
    if form == "csv" and any(isinstance(kind, DoubleType | FloatType) for kind in kinds):
        looks.append(r"[eE]\+?\d{2}|\d{39}")
    return text.rlike("|".join(looks)) if looks else None


def _escaped(separator: str) -> str:
    return "".join(f"\\x{{{ord(each):x}}}" for each in separator)


def _leaves(kind: DataType) -> Iterator[DataType]:
    """Yield the types of the values inside a type's values."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield from _leaves(field.dataType)
        case ArrayType():
            yield from _leaves(kind.elementType)
        case MapType():
            yield from _leaves(kind.valueType)
        case _:
            yield kind


def telling_schema(declared: StructType, form: Format) -> StructType:
    """Return the schema of the second parse: of JSON only what must be looked at, of CSV all columns."""
    return _telling_struct(declared, form)


def _telling_struct(declared: StructType, form: Format) -> StructType:
    kept = ((field.name, _telling(field.dataType, form)) for field in declared.fields)
    return StructType([StructField(name, kind) for name, kind in kept if kind is not None])


def _telling(kind: DataType, form: Format) -> DataType | None:
    match kind:
        case TimestampType():
            return StringType()
        case DecimalType():
            # As many digits before the point as declared, if enough remain after it.
            return DecimalType(_MOST_DIGITS, max(_MOST_DIGITS - kind.precision + kind.scale, min(38, kind.scale + 10)))
        case StructType():
            return _telling_struct(kind, form) if _telling_struct(kind, form).fields else None
        case ArrayType():
            inner = _telling(kind.elementType, form)
            return inner and ArrayType(inner)
        case MapType():
            inner = _telling(kind.valueType, form)
            return inner and MapType(kind.keyType, inner)
    return StringType() if form == "csv" else None


def altered(declared: StructType, told: Column, form: Format, say: Callable[[str], str] = str) -> Column:
    """Return what `say` makes of the first text that is read as another value; null when there is none.

    `told` is the value in its telling schema.
    """

    def first(row: Column) -> Column:
        return F.coalesce(F.lit(None).cast("string"), *_said(declared, row, form, "", say))

    # A lambda's argument is evaluated once, and not once for each field.
    return F.get(F.transform(F.array(told), first), F.lit(0))


def _said(kind: DataType, told: Column, form: Format, path: str, say: Callable[[str], str]) -> Iterator[Column]:
    """Yield for each value in a value what is said of it, or null."""
    match kind:
        case StructType():
            for field in kind.fields:
                if _telling(field.dataType, form) is not None:
                    yield from _said(field.dataType, told[field.name], form, _joined(path, field.name), say)
        case ArrayType():
            yield _said_of_any(kind.elementType, told, form, f"{path}[]", say)
        case MapType():
            yield _said_of_any(kind.valueType, F.map_values(told), form, _joined(path, "*"), say)
        case TimestampType():
            yield F.when(told.rlike(_TIME_ALONE), F.lit(say(f"{path} is a time without a date")))
        case DecimalType():
            beyond = told % F.lit(Decimal(1).scaleb(-kind.scale)) != 0
            yield F.when(beyond, F.lit(say(f"{path} has more than {kind.scale} digits after the point")))
        case DoubleType() | FloatType():
            infinite = F.abs(told.try_cast(kind)) == float("inf")
            yield F.when(told.rlike(_NUMBER) & infinite, F.lit(say(_beyond_range(kind, path))))


def _said_of_any(kind: DataType, values: Column, form: Format, path: str, say: Callable[[str], str]) -> Column:
    def first(value: Column) -> Column:
        return F.coalesce(F.lit(None).cast("string"), *_said(kind, value, form, path, say))

    return F.get(F.filter(F.transform(values, first), lambda each: each.isNotNull()), F.lit(0))


def infinities(declared: StructType, row: Column) -> Iterator[Column]:
    """Yield for each number inside a row of JSON the failure that it is Infinity, which JSON cannot say, or null."""
    for field in declared.fields:
        yield from _infinities(field.dataType, row[field.name], field.name)


def _infinities(kind: DataType, value: Column, path: str) -> Iterator[Column]:
    match kind:
        case DoubleType() | FloatType():
            yield F.when(F.abs(value) == _infinite(kind), because("wrong_type", _beyond_range(kind, path)))
        case StructType():
            for field in kind.fields:
                yield from _infinities(field.dataType, value[field.name], _joined(path, field.name))
        case ArrayType():
            yield from _infinities_of(kind.elementType, value, f"{path}[]")
        case MapType():
            yield from _infinities_of(kind.valueType, F.map_values(value), _joined(path, "*"))


def _infinities_of(kind: DataType, values: Column, path: str) -> Iterator[Column]:
    """Yield the failures of an array's elements, by functions that Spark compiles, as it does not compile lambdas."""
    match kind:
        case DoubleType() | FloatType():
            infinite = (F.array_contains(values, sign * _infinite(kind)) for sign in (1, -1))
            yield F.when(next(infinite) | next(infinite), because("wrong_type", _beyond_range(kind, path)))
        case StructType():
            for field in kind.fields:
                yield from _infinities_of(field.dataType, values[field.name], _joined(path, field.name))
        case ArrayType():
            if _has_numbers(kind):
                yield from _infinities_of(kind.elementType, _flat(values), f"{path}[]")
        case MapType():
            if _has_numbers(kind):
                inner = _flat(F.transform(values, F.map_values))
                yield from _infinities_of(kind.valueType, inner, _joined(path, "*"))


def _flat(values: Column) -> Column:
    # With a null among them, `flatten` would return null.
    return F.flatten(F.array_compact(values))


def _has_numbers(kind: DataType) -> bool:
    return any(isinstance(leaf, DoubleType | FloatType) for leaf in _leaves(kind))


def _infinite(kind: DataType) -> Column:
    return F.lit(float("inf")).cast(kind)


def _beyond_range(kind: DataType, path: str) -> str:
    return f"{path} is beyond the range of {kind.simpleString().upper()}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
