"""Spark's types from the DDL of declarations."""

from __future__ import annotations

from pyspark.sql.types import StructType


def struct_of(ddl: str) -> StructType:
    """Return the struct that a DDL string of columns declares. Raises TypeError for any other DDL."""
    declared = StructType.fromDDL(ddl)
    if not isinstance(declared, StructType):
        raise TypeError(f"not a list of columns: {ddl[:80]}")
    return declared
