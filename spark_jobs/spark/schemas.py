"""Spark's types from the DDL of declarations."""

from __future__ import annotations

from functools import cache

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_WHOLE_NUMBERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
"""From the narrowest to the widest."""

_DIGITS_OF_INT, _DIGITS_OF_BIGINT = 10, 20
"""Before the point, that Spark's reader wants of a DECIMAL for whole numbers of files, however small."""

WITHOUT_COMMAS = {"locale": "de-CH"}
"""Option of Spark's parsers of JSON and CSV by which a DECIMAL in a text is no number if it has a comma.

By default they leave commas out: `12,50` would be 1250. They read digits of no other type by a locale. This one has a
decimal point, and another mark than the comma between thousands.
"""


def struct_of(ddl: str) -> StructType:
    """Return the struct that a DDL string of columns declares. Raises TypeError for any other DDL."""
    # A new one, since its `add` changes it.
    return StructType(list(_parsed(ddl).fields))


@cache
def _parsed(ddl: str) -> StructType:
    # An interval asks dozens of times, a stream in each micro-batch; Spark's parser is slow for a wide table.
    declared = StructType.fromDDL(ddl)
    if not isinstance(declared, StructType):
        raise TypeError(f"not a list of columns: {ddl[:80]}")
    return declared


def reads_as(written: DataType, declared: DataType) -> bool:
    """Return whether Parquet files of one type, read as the other, give the values that were written.

    That is so for the same type, for a wider one as in the table of declaring.md, “Columns that change”, for whole
    numbers as ones with decimals that hold them all, and for dates and times of the session, which is in UTC.
    Structs have the same fields in the same order, because they are also cast, which is by position.
    """
    match written, declared:
        case (StructType(), StructType()):
            names = [[each.name.lower() for each in kind.fields] for kind in (written, declared)]
            pairs = zip(written.fields, declared.fields, strict=False)
            return names[0] == names[1] and all(reads_as(one.dataType, other.dataType) for one, other in pairs)
        case (ArrayType(), ArrayType()):
            return reads_as(written.elementType, declared.elementType)
        case (MapType(), MapType()):
            return reads_as(written.keyType, declared.keyType) and reads_as(written.valueType, declared.valueType)
        case (DecimalType(), DecimalType()):
            digits, further = written.precision - written.scale, declared.precision - declared.scale
            return digits <= further and written.scale <= declared.scale
        case (ByteType() | ShortType() | IntegerType(), DecimalType()):
            return declared.precision - declared.scale >= _DIGITS_OF_INT
        case (LongType(), DecimalType()):
            return declared.precision - declared.scale >= _DIGITS_OF_BIGINT
        case (FloatType() | ByteType() | ShortType() | IntegerType(), DoubleType()):
            return True
        case (DateType(), TimestampNTZType()) | (TimestampNTZType(), TimestampType()):
            return True
    if type(written) in _WHOLE_NUMBERS and type(declared) in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(type(written)) <= _WHOLE_NUMBERS.index(type(declared))
    return written.simpleString() == declared.simpleString()


def scale_of(kind: DataType) -> int | None:
    """Return how many decimals a number has whose sums are exact; None for any other type."""
    if isinstance(kind, DecimalType):
        return kind.scale
    return 0 if type(kind) in _WHOLE_NUMBERS else None
