"""The order-independent hash of rows by which builds are compared.

Version 2 hashes typed values: each row is hashed twice by xxHash64 with different seeds, and both hashes are summed
over the rows. Two different sets of rows have equal sums in one lane with probability 2^-64 and in both with 2^-128, as
far as xxHash64 spreads its input. This does not protect against deliberate collisions; each file's SHA-256 does.
Version 1 hashed each row's JSON text. Hashes are compared within a version only
(`include/decisions/014-a-row-is-hashed-by-its-values.md`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

_FULL = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}

_HALF = 1 << 32


class HashVersion(StrEnum):
    """How rows are hashed."""

    JSON = "v1"
    TYPED = "v2"


NEWEST = HashVersion.TYPED


def row_hashes(schema: StructType, version: HashVersion = NEWEST) -> tuple[Column, Column]:
    """Return two independent 64-bit hashes of a row with these columns; nulls, nesting and -0.0 are distinguished."""
    fields = sorted(schema.fields, key=lambda field: field.name)
    if version is HashVersion.JSON:
        values = [F.to_json(F.struct(*(field.name for field in fields)), _FULL)]
    else:
        values = [each for field in fields for each in _typed(F.col(field.name), field.dataType)]
    return F.xxhash64(*values), F.xxhash64(F.lit("tidemark"), *values)


def _typed(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield the columns to hash for a value, so that no two values give the same sequence.

    Spark's hash skips nulls and ignores lengths, so each value is preceded by whether it is null, an array by its size.
    """
    yield value.isNull()
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _typed(value[field.name], field.dataType)
    elif isinstance(kind, ArrayType):
        yield F.size(value)
        yield from _elements(value, kind.elementType)
    elif isinstance(kind, MapType):
        # Entries in stored order, because Spark does not hash maps.
        entries = StructType().add("key", kind.keyType).add("value", kind.valueType)
        yield from _typed(F.map_entries(value), ArrayType(entries))
    elif isinstance(kind, FloatType | DoubleType):
        number = value.cast("double")
        yield number
        # Spark hashes -0.0 as 0.0.
        yield F.when(number == 0, number.cast("string"))
    elif isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        # A widened column keeps its hashes.
        yield value.cast("bigint")
    else:
        yield value.cast(kind)


def _elements(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield the columns to hash for the elements of an array, so that no two arrays of one size give the same sequence.

    Spark does not compile functions of elements, and asks its settings for each value that they read. So elements of
    text, or of structs of text, are hashed without such a function where none is null: it gives the same hash.
    """
    of_each = F.transform(value, lambda each: F.struct(*_typed(each, kind)))
    kinds = [each.dataType for each in kind.fields] if isinstance(kind, StructType) else [kind]
    if not kinds or not all(isinstance(each, StringType) for each in kinds):
        yield of_each
        return
    texts = [value[each.name] for each in kind.fields] if isinstance(kind, StructType) else [value]
    # False only if it has neither a null nor this text.
    may_be_null = F.coalesce(reduce(or_, (F.array_contains(each, "\0") for each in texts)), F.lit(True))
    not_null = F.array_repeat(F.lit(False), F.size(value))
    flagged = [column for each in texts for column in (not_null, each)]
    yield F.when(~may_be_null, F.arrays_zip(*([not_null] if isinstance(kind, StructType) else []), *flagged))
    yield F.when(may_be_null, of_each)


def sums(first: Column | str = "hash_1", second: Column | str = "hash_2") -> list[Column]:
    """Return aggregates of rows and both hashes; they do not depend on the order, and every duplicate counts."""
    hashes = (F.col(each) if isinstance(each, str) else each for each in (first, second))
    return [F.count(F.lit(1)).alias("rows"), *(_sum(each).alias(f"sum_{n}") for n, each in enumerate(hashes, 1))]


def _sum(value: Column) -> Column:
    """Return the exact sum of 64-bit numbers, added by halves: sums of decimals cost as much as the hashes.

    Beyond 2^31 rows the sum of a half overflows, which is an error.
    """
    high, low = F.sum(F.shiftright(value, 32)), F.sum(value.bitwiseAND(F.lit(_HALF - 1)))
    exact = "DECIMAL(38,0)"
    return (high.cast("DECIMAL(20,0)") * F.lit(_HALF).cast("DECIMAL(12,0)") + low.cast("DECIMAL(20,0)")).cast(exact)


def content_hash(columns: Iterable[str], rows: int, sum_1: object, sum_2: object, version: HashVersion = NEWEST) -> str:
    """Return the content hash of rows with these columns: 32 hex digits, prefixed by later versions."""
    text = f"{','.join(sorted(columns))}|{rows}|{sum_1 or 0}|{sum_2 or 0}"
    digits = hashlib.sha256(text.encode()).hexdigest()[:32]
    return digits if version is HashVersion.JSON else f"{version}:{digits}"


def version_of(content_hash: str) -> HashVersion:
    """Return the version of a content hash."""
    tag, colon, _ = content_hash.rpartition(":")
    return HashVersion(tag) if colon else HashVersion.JSON


def common_version(content_hashes: Iterable[str]) -> HashVersion:
    """Return the version for hashing rows that are compared with these hashes: the oldest among them."""
    return reduce(min, map(version_of, content_hashes), NEWEST)
