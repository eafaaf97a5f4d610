"""The order-independent hash of rows by which builds are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

_FULL = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}


def row_hashes(columns: Sequence[str]) -> tuple[Column, Column]:
    """Return two independent 64-bit hashes of a row, nulls and nesting included (they hash its full JSON)."""
    text = F.to_json(F.struct(*sorted(columns)), _FULL)
    return F.xxhash64(text), F.xxhash64(F.lit("tidemark"), text)


def sums(first: Column | str = "hash_1", second: Column | str = "hash_2") -> list[Column]:
    """Return aggregates of rows and both hashes; they do not depend on the order, and every duplicate counts."""
    exact = "DECIMAL(38,0)"
    return [
        F.count(F.lit(1)).alias("rows"),
        *(
            F.sum((F.col(each) if isinstance(each, str) else each).cast(exact)).alias(f"sum_{n}")
            for n, each in enumerate((first, second), 1)
        ),
    ]


def content_hash(columns: Sequence[str], rows: int, sum_1: object, sum_2: object) -> str:
    """Return the content hash of rows with these columns as 32 hex digits."""
    text = f"{','.join(sorted(columns))}|{rows}|{sum_1 or 0}|{sum_2 or 0}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
