"""DDL of declarations to Spark's types."""

from __future__ import annotations

from pyspark.sql.types import StructType


def struct_of(ddl: str) -> StructType:
    """The struct that a DDL string of columns declares. Raises TypeError when it declares something else."""
    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise TypeError(f"not a list of columns: {ddl[:80]}")
    return found
