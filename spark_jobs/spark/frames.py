"""Small DataFrames from data that the driver holds, and frames that are kept in memory.

Data is passed as Arrow: for Python rows, Spark would start Python workers, which costs an application seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.spark.schemas import struct_of


def frame_of(spark: SparkSession, rows: Iterable[Sequence[object]], columns: str) -> DataFrame:
    """Return the rows with the columns that the DDL declares; times are in UTC."""
    schema = struct_of(columns)
    described = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(
        pa.Table.from_pylist(described, schema=to_arrow_schema(schema, timezone="UTC")), schema
    )


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame of that schema without rows."""
    nulls = (F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields)
    return spark.range(0).select(*nulls)


@contextmanager
def in_memory(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory during the block, and release it also when the block fails."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
