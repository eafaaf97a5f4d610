"""Spark's types from the DDL of declarations."""

from __future__ import annotations

from functools import cache

from pyspark.sql.types import StructType


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
